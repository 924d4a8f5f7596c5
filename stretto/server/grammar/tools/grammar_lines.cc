// Grammars for tests/grammar_test.py and bench/grammar_masks. Usage: grammar_lines MODEL_DIRECTORY
// VOCABULARY_SIZE; of a vocabulary larger than the model's, the further tokens are pairs of its own
// by lot. Reads lines of JSON and writes one for each:
//   {"schema" | "regex" | "gbnf" | "choice": ..., "compact": bool}  makes a grammar: {"ms"}
//   {"bytes": [...]}     whether they are a text of it: {"begins", "ends"}
//   {"tokens": [...]}    after these tokens of the last one: {"allowed": [...]}
//   {"walk": seed, "most": n}  a random answer, drawn from the masks alone: {"tokens", "text",
//                        "ended", "us"}, the last the time of each mask
// or {"error"}.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <random>
#include <set>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/server/grammar/constraint.h"
#include "stretto/server/grammar/front.h"
#include "stretto/server/grammar/tokenizer_vocabulary.h"

namespace {

using Clock = std::chrono::steady_clock;
namespace grammar = stretto::grammar;

std::shared_ptr<const grammar::Vocabulary> enlarged(const stretto::Tokenizer& tokenizer, int size) {
  std::vector<std::string> tokens = tokenizer.token_bytes();
  const auto own = tokens.size();
  std::set<std::string> known(tokens.begin(), tokens.end());
  std::mt19937_64 random(1);
  while (tokens.size() < static_cast<std::size_t>(size)) {
    std::string pair = tokens[random() % own] + tokens[random() % own];
    if (known.insert(pair).second) tokens.push_back(std::move(pair));
  }
  return std::make_shared<const grammar::Vocabulary>(std::move(tokens), size);
}

class Lines {
 public:
  Lines(const std::string& directory, int size)
      : tokenizer_(stretto::Tokenizer::load(directory)),
        vocabulary_(size > tokenizer_.id_limit() ? enlarged(tokenizer_, size)
                                                 : grammar::vocabulary_of(tokenizer_, size)),
        end_(tokenizer_.eos_id().value_or(0)) {}

  stretto::Json answer(const std::string& line) {
    const stretto::Json request = stretto::parse_json(line, "line");
    if (request.contains("tokens")) return after(request["tokens"].get<std::vector<int>>());
    if (request.contains("bytes")) return match(request["bytes"].get<std::vector<int>>());
    if (request.contains("walk")) return walk(request["walk"], request["most"]);
    const auto ordered = grammar::OrderedJson::parse(line);
    grammar::Asked asked{.is_compact = request.value("compact", false)};
    if (request.contains("schema")) {
      asked.kind = grammar::Asked::Kind::kSchema;
      asked.schema = ordered["schema"];
    } else if (request.contains("choice")) {
      asked.kind = grammar::Asked::Kind::kChoice;
      asked.choices = request["choice"].get<std::vector<std::string>>();
    } else {
      const bool is_regex = request.contains("regex");
      asked.kind = is_regex ? grammar::Asked::Kind::kRegex : grammar::Asked::Kind::kGbnf;
      asked.text = request[is_regex ? "regex" : "gbnf"].get<std::string>();
    }
    const Clock::time_point begin = Clock::now();
    grammar::Budget budget;
    made_ = std::make_shared<const grammar::Grammar>(grammar::rules_of(asked, *vocabulary_, budget),
                                                     *vocabulary_, budget);
    const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
    return {{"ms", took.count()}};
  }

 private:
  std::vector<int> allowed(std::span<const int> tokens, grammar::GrammarConstraint& constraint) {
    std::vector<int> out;
    const auto bits = constraint.after(tokens).bits;
    for (std::size_t t = 0; t < bits.size() * 32; ++t) {
      if ((bits[t / 32] >> (t % 32) & 1) != 0) out.push_back(static_cast<int>(t));
    }
    return out;
  }

  stretto::Json match(const std::vector<int>& bytes) const {
    const auto automaton = made_->automaton();
    int state = automaton->start();
    for (int byte : bytes) {
      if (state != grammar::Automaton::kDead) {
        state = automaton->step(state, static_cast<std::uint8_t>(byte));
      }
    }
    const bool begins = state != grammar::Automaton::kDead;
    return {{"begins", begins}, {"ends", begins && automaton->may_end(state)}};
  }

  stretto::Json after(const std::vector<int>& tokens) {
    grammar::GrammarConstraint constraint(made_, {end_});
    return {{"allowed", allowed(tokens, constraint)}};
  }

  stretto::Json walk(std::uint64_t seed, std::size_t most) {
    std::mt19937_64 random(seed);
    grammar::GrammarConstraint constraint(made_, {end_});
    std::vector<int> tokens;
    stretto::Json us = stretto::Json::array();
    auto told = [&](bool ended) -> stretto::Json {
      std::string text;
      for (int token : tokens) text += vocabulary_->token(token);
      return {{"tokens", tokens}, {"text", text}, {"ended", ended}, {"us", us}};
    };
    while (tokens.size() < most) {
      const Clock::time_point begin = Clock::now();
      constraint.after(tokens);
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
      const std::vector<int> next = allowed(tokens, constraint);
      const int token = next[random() % next.size()];
      const bool may_end = std::find(next.begin(), next.end(), end_) != next.end();
      if (token == end_ || (may_end && random() % 2 == 0)) return told(true);
      tokens.push_back(token);
    }
    return told(false);
  }

  stretto::Tokenizer tokenizer_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  int end_;
  std::shared_ptr<const grammar::Grammar> made_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Lines lines(argv[1], std::stoi(argv[2]));
  for (std::string line; std::getline(std::cin, line);) {
    stretto::Json answer;
    try {
      answer = lines.answer(line);
    } catch (const stretto::UserError& e) {
      answer = {{"error", e.what()}};
    }
    std::puts(stretto::to_line(answer).c_str());
    std::fflush(stdout);
  }
}
