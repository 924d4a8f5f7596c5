// Random grammars of every kind. Input: a letter for the kind (s: schema, r: regex, g: GBNF), a
// byte for the walk, the source. What is refused by a UserError is fine; anything else is a
// finding, such as an answer that cannot go on though its grammar is one.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/server/grammar/constraint.h"
#include "stretto/server/grammar/front.h"

namespace {

namespace grammar = stretto::grammar;

constexpr int kEnd = 300;

grammar::Vocabulary make_vocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 255; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* more : {"\":", "\",", "{\"", "}}", "[[", "true", " \"", "ab", "123", "\n  "}) {
    tokens.emplace_back(more);
  }
  return {std::move(tokens), kEnd + 1};
}

grammar::Asked asked_of(char kind, std::string_view source) {
  using Kind = grammar::Asked::Kind;
  if (kind != 's') {
    return {.kind = kind == 'r' ? Kind::kRegex : Kind::kGbnf, .text = std::string(source)};
  }
  stretto::parse_json(source, "fuzz");
  return {.kind = Kind::kSchema,
          .schema = grammar::OrderedJson::parse(source.begin(), source.end()),
          .is_compact = source.size() % 2 == 0};
}

// By a linear congruence, so that the same input walks the same way.
void walk(const std::shared_ptr<const grammar::Grammar>& made, std::uint32_t seed) {
  grammar::GrammarConstraint constraint(made, {kEnd});
  std::vector<int> tokens;
  for (int step = 0; step < 40; ++step) {
    const auto allowed = constraint.after(tokens);
    std::vector<int> ids;
    for (int id = 0; id <= kEnd; ++id) {
      if ((allowed.bits[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) != 0) {
        ids.push_back(id);
      }
    }
    STRETTO_CHECK(!ids.empty(), "nothing may follow");
    seed = seed * 1664525 + 1013904223;
    tokens.push_back(ids[seed / 65536 % ids.size()]);
    if (tokens.back() == kEnd) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const grammar::Vocabulary vocabulary = make_vocabulary();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < 2) return 0;
  try {
    grammar::Budget budget({.steps = 300'000, .nodes = 5'000, .states = 2'000});
    const grammar::Asked asked = asked_of(input[0], input.substr(2));
    auto made = std::make_shared<const grammar::Grammar>(
        grammar::rules_of(asked, vocabulary, budget), vocabulary, budget);
    walk(made, static_cast<std::uint8_t>(input[1]));
  } catch (const stretto::UserError&) {
  }
  return 0;
}
