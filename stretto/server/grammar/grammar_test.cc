// What a user would lose: answers that do not fit, ends too early, or a server that a request's
// grammar keeps busy. tests/grammar_test.py compares with other implementations.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/server/grammar/constraint.h"
#include "stretto/server/grammar/front.h"

namespace stretto::grammar {
namespace {

constexpr int kEnd = 299;

// All bytes, and some longer tokens.
Vocabulary bytes_and(const std::vector<std::string>& more, bool strips_first_space = false) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 255; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return {std::move(tokens), kEnd + 1, strips_first_space};
}

std::shared_ptr<const Grammar> make(const Asked& asked, const Vocabulary& vocabulary) {
  Budget budget;
  return std::make_shared<const Grammar>(rules_of(asked, vocabulary, budget), vocabulary, budget);
}

std::string error_of(const Asked& asked) {
  const Vocabulary vocabulary = bytes_and({});
  try {
    make(asked, vocabulary);
  } catch (const GrammarError& e) {
    return e.what();
  }
  return "";
}

Asked asked_regex(const std::string& text) { return {.kind = Asked::Kind::kRegex, .text = text}; }
Asked asked_gbnf(const std::string& text) { return {.kind = Asked::Kind::kGbnf, .text = text}; }

std::vector<int> allowed(GrammarConstraint& constraint, const std::vector<int>& tokens) {
  const auto bits = constraint.after(tokens).bits;
  std::vector<int> out;
  for (int t = 0; t <= kEnd; ++t) {
    if ((bits[static_cast<std::size_t>(t) / 32] >> (t % 32) & 1) != 0) out.push_back(t);
  }
  return out;
}

TEST(Grammar, TokensThatCrossItsPartsAreAllowed) {
  const Vocabulary vocabulary = bytes_and({"ab", "abc", "bc(", "b)"});
  const auto grammar =
      make(asked_gbnf("root ::= \"(\" inner \")\"\ninner ::= \"a\" [bx] | root"), vocabulary);
  GrammarConstraint constraint(grammar, {kEnd});
  EXPECT_EQ(allowed(constraint, {}), std::vector<int>({'('}));
  EXPECT_EQ(allowed(constraint, {'('}), std::vector<int>({'(', 'a', 255}));
  EXPECT_EQ(allowed(constraint, {'(', 'a'}), std::vector<int>({'b', 'x', 258}));
  EXPECT_EQ(allowed(constraint, {'(', 255, ')'}), std::vector<int>({kEnd}));
}

TEST(Grammar, WhatWasGeneratedSaysAll) {
  const Vocabulary vocabulary = bytes_and({"ab"});
  const auto grammar = make(asked_regex("(ab){2}c?"), vocabulary);
  GrammarConstraint constraint(grammar, {kEnd});
  const std::vector<int> late = {255, 255};
  EXPECT_EQ(allowed(constraint, late), std::vector<int>({'c', kEnd}));
  EXPECT_EQ(allowed(constraint, {'a'}), std::vector<int>({'b'}));  // another past
  EXPECT_EQ(allowed(constraint, late), std::vector<int>({'c', kEnd}));
  EXPECT_THROW(constraint.after(std::vector<int>({'x'})), ConstraintError);
}

TEST(Grammar, AnAnswerIsCompleteWhereNothingEndsIt) {
  const Vocabulary vocabulary = bytes_and({});
  GrammarConstraint constraint(make(asked_regex("ab"), vocabulary), {});
  EXPECT_FALSE(constraint.after(std::vector<int>({'a'})).is_complete);
  EXPECT_TRUE(constraint.after(std::vector<int>({'a', 'b'})).is_complete);
}

TEST(Grammar, ASpaceThatIsNotToldDoesNotCount) {
  const Vocabulary vocabulary = bytes_and({" a", " b"}, true);
  GrammarConstraint constraint(make(asked_regex("a( a)?"), vocabulary), {kEnd});
  EXPECT_EQ(allowed(constraint, {}), std::vector<int>({'a', 255}));
  EXPECT_EQ(allowed(constraint, {255}), std::vector<int>({' ', 255, kEnd}));
}

TEST(Grammar, NobodySpellsASpecialToken) {
  const std::string special = special_text("<|end|>");
  const Vocabulary vocabulary = bytes_and({special});
  GrammarConstraint any(make(asked_regex("[^a]*"), vocabulary), {kEnd});
  for (int token : allowed(any, {})) EXPECT_NE(token, 255);
}

TEST(Grammar, LongStringsWithALimitAreThoseOfTheAutomaton) {
  // Masks of states far from the limit are shared; each has to be what a walk by bytes says.
  std::mt19937_64 random(test_seed());
  SCOPED_TRACE("STRETTO_TEST_SEED=" + std::to_string(test_seed()));
  std::vector<std::string> more;
  for (int i = 0; i < 40; ++i) {
    std::string token(1 + random() % 30, 'a');
    for (char& c : token) c = "ab\"\xC3\xA9"[random() % 5];
    more.push_back(token);
  }
  const Vocabulary vocabulary = bytes_and(more);
  const Asked asked = {.kind = Asked::Kind::kSchema,
                       .schema = {{"type", "string"}, {"maxLength", 60}}};
  const auto grammar = make(asked, vocabulary);
  GrammarConstraint constraint(grammar, {kEnd});
  std::vector<int> tokens = {'"'};
  while (tokens.size() < 70) {
    const std::vector<int> ours = allowed(constraint, tokens);
    const auto automaton = grammar->automaton();
    int state = automaton->start();
    for (int t : tokens) {
      for (char c : vocabulary.token(t))
        state = automaton->step(state, static_cast<std::uint8_t>(c));
    }
    std::vector<int> want;
    for (int t = 0; t < kEnd; ++t) {
      int to = vocabulary.token(t).empty() ? Automaton::kDead : state;
      for (char c : vocabulary.token(t)) {
        if (to != Automaton::kDead) to = automaton->step(to, static_cast<std::uint8_t>(c));
      }
      if (to != Automaton::kDead) want.push_back(t);
    }
    if (automaton->may_end(state)) want.push_back(kEnd);
    ASSERT_EQ(ours, want) << "after " << tokens.size() << " tokens";
    if (ours == std::vector<int>({kEnd})) break;
    std::erase(want, '"');  // to get far
    std::erase(want, '\\');
    tokens.push_back(want.empty() ? '"' : want[random() % want.size()]);
  }
}

TEST(Grammar, HalfASurrogatePairIsNoCharacter) {
  for (const char* half : {"\\uD800", "\\udbff", "\\uDC00", "\\uDFFF", "\\U0000D912"}) {
    const std::string code = half;
    for (const std::string& body :
         {'"' + code + '"', "\"a" + code + "b\"", '[' + code + ']', "[a-" + code + ']',
          '[' + code + "-\\uFFFF]", "[^" + code + ']'}) {
      EXPECT_NE(error_of(asked_gbnf("root ::= " + body)).find("half a surrogate pair"),
                std::string::npos)
          << body;
    }
  }
  EXPECT_EQ(error_of(asked_gbnf("root ::= \"\\uD7FF\\uE000\\U0001F600\" [\\uD7FF-\\uE000]")), "");
  // Bytes that would be one, or a character beyond the last, or one in too many bytes.
  for (const char* bytes :
       {"\xED\xA0\x80", "\xED\xBF\xBF", "\xF4\x90\x80\x80", "\xE0\x80\x80", "\xF0\x8F\xBF\xBF"}) {
    for (const Asked& asked :
         {asked_gbnf(std::string("root ::= \"") + bytes + '"'), asked_regex(bytes)}) {
      EXPECT_NE(error_of(asked).find("this is no UTF-8"), std::string::npos) << bytes;
    }
  }
}

TEST(Grammar, WhatCannotBeIsRefusedSoon) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(error_of(asked_regex("(a|b)*a(a|b){40}")).find("too large"), std::string::npos);
  EXPECT_NE(error_of(asked_regex("((((a{1000}){1000}){1000}){1000})")).find("too large"),
            std::string::npos);
  EXPECT_NE(error_of(asked_gbnf("root ::= root \"a\" | \"b\"")).find("begins with itself"),
            std::string::npos);
  EXPECT_NE(error_of(asked_gbnf("root ::= a root | \"x\"\na ::= b*\nb ::= \"\""))
                .find("begins with itself"),
            std::string::npos);
  EXPECT_NE(error_of(asked_gbnf("root ::= \"a\" root")).find("no text at all"), std::string::npos);
  EXPECT_NE(error_of(asked_regex("a[b")).find("at byte 3"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace stretto::grammar
