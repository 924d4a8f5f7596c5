// What a user would lose: a server that one request's grammar keeps busy beyond its deadline, or
// whose memory it takes. Time is that of the processor, so that a loaded machine changes nothing.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/server/grammar/constraint.h"
#include "stretto/server/grammar/front.h"

namespace stretto::grammar {
namespace {

using std::chrono::milliseconds;

constexpr bool kIsSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif
// What may come after the deadline: a step that is under way, and giving memory back.
constexpr milliseconds kSlack{kIsSanitized ? 5000 : 300};
constexpr std::int64_t kMostMegabytes = 900;

Vocabulary bytes_alone() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 255; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return {std::move(tokens), 256};
}

Asked regex(const std::string& text) { return {.kind = Asked::Kind::kRegex, .text = text}; }
Asked gbnf(const std::string& text) { return {.kind = Asked::Kind::kGbnf, .text = text}; }
Asked schema(OrderedJson json) { return {.kind = Asked::Kind::kSchema, .schema = std::move(json)}; }

std::string times(int count, const std::function<std::string(int)>& one) {
  std::string out;
  for (int i = 0; i < count; ++i) out += one(i);
  return out;
}

OrderedJson list(int count, const std::function<OrderedJson(int)>& one) {
  OrderedJson out = OrderedJson::array();
  for (int i = 0; i < count; ++i) out.push_back(one(i));
  return out;
}

OrderedJson object(int count, const std::function<OrderedJson(int)>& one) {
  OrderedJson out = OrderedJson::object();
  for (int i = 0; i < count; ++i) out.emplace("p" + std::to_string(i), one(i));
  return out;
}

OrderedJson properties(OrderedJson its) {
  return {{"type", "object"}, {"properties", std::move(its)}};
}

std::string name(int i) { return "p" + std::to_string(i); }
OrderedJson refers_to(const std::string& to) { return {{"$ref", "#/$defs/" + to}}; }
OrderedJson plain(int) { return {{"type", "string"}}; }
OrderedJson number(int i) { return i; }

// Each definition `fan` times the next one, under a keyword: what is written out grows by powers.
OrderedJson doubling(const char* keyword, int levels, int fan) {
  OrderedJson defs;
  for (int i = 0; i < levels; ++i) {
    defs[name(i)] = {{keyword, list(fan, [&](int) { return refers_to(name(i + 1)); })}};
  }
  defs[name(levels)] = {{"type", "string"}, {"minLength", 1}};
  return {{"$defs", std::move(defs)}, {"$ref", "#/$defs/p0"}};
}

OrderedJson nested(int depth, const std::function<OrderedJson(OrderedJson)>& around) {
  OrderedJson out = {{"type", "string"}};
  for (int i = 0; i < depth; ++i) out = around(std::move(out));
  return out;
}

using Cases = std::vector<std::pair<std::string, Asked>>;

Cases schemas_of_many_branches() {
  const OrderedJson big = list(40'000, number);
  Cases out;
  auto add = [&](std::string what, OrderedJson json) {
    out.emplace_back(std::move(what), schema(std::move(json)));
  };
  add("deep arrays", nested(60, [](OrderedJson in) {
        return OrderedJson{{"type", "array"}, {"items", std::move(in)}};
      }));
  add("deep first items", nested(60, [](OrderedJson in) {
        OrderedJson first = list(199, plain);
        first.push_back(std::move(in));
        return OrderedJson{{"type", "array"}, {"minItems", 150}, {"prefixItems", std::move(first)}};
      }));
  add("deep anyOf beside properties", nested(9, [](OrderedJson in) {
        return OrderedJson{{"properties", object(40, plain)}, {"anyOf", {in, in}}};
      }));
  add("deep not", nested(60, [](OrderedJson in) { return OrderedJson{{"not", std::move(in)}}; }));
  add("huge enum", {{"enum", big}});
  add("huge enum of objects", {{"enum", list(20'000, [](int i) {
                                  return OrderedJson{{"a", i}, {"b", {i, i}}};
                                })}});
  add("an enum of long texts",
      {{"enum", list(10, [](int i) { return std::string(90'000, static_cast<char>('a' + i)); })}});
  add("two huge enums",
      {{"allOf", {{{"enum", big}}, {{"enum", list(40'000, [](int i) { return 80'000 - i; })}}}}});
  add("a huge enum without another",
      {{"enum", big}, {"not", {{"enum", list(40'000, [](int i) { return i + 40'000; })}}}});
  add("different items of a huge enum",
      {{"type", "array"}, {"uniqueItems", true}, {"items", {{"enum", big}}}});
  add("huge lists of types",
      {{"allOf",
        {{{"type", list(60'000, [](int) { return "string"; })}},
         {{"type", list(60'000, [](int i) { return i % 2 ? "string" : "number"; })}}}}});
  add("wide anyOf",
      {{"anyOf", list(200, [](int i) {
          return properties(object(20, [&](int j) { return OrderedJson{{"const", i * 20 + j}}; }));
        })}});
  add("wide anyOf, twice",
      {{"allOf",
        {{{"anyOf", list(15, [](int) { return properties(object(300, plain)); })}},
         {{"anyOf", list(13, [](int i) {
             return OrderedJson{{"minProperties", i}};
           })}}}}});
  add("oneOf told apart by the last of many properties",
      {{"oneOf", list(150, [](int i) {
          OrderedJson its = object(60, [](int) { return OrderedJson{{"const", 0}}; });
          its["k"] = {{"const", i}};
          return properties(std::move(its));
        })}});
  add("oneOf whose branches share a huge enum",
      {{"$defs", {{"e", {{"enum", big}}}}},
       {"oneOf", list(150, [](int i) {
          return properties({{"a", refers_to("e")}, {"k", {{"const", i}}}});
        })}});
  add("oneOf of what only 'not' tells apart", {{"oneOf", list(60, [](int i) {
                                                  return OrderedJson{{"required", {name(i)}}};
                                                })}});
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    add(std::string("$refs that double under ") + keyword, doubling(keyword, 60, 2));
    add(std::string("$refs by the hundred under ") + keyword, doubling(keyword, 10, 100));
  }
  OrderedJson kinds = doubling("anyOf", 15, 6);
  kinds["oneOf"] = {refers_to("p0"), refers_to("p1")};
  kinds.erase("$ref");
  add("branches of branches told apart", std::move(kinds));
  OrderedJson names = doubling("anyOf", 15, 6);
  names["propertyNames"] = refers_to("p0");
  names.erase("$ref");
  add("names of branches of branches", std::move(names));
  return out;
}

Cases schemas_of_many_names_and_texts() {
  Cases out;
  auto add = [&](std::string what, OrderedJson json) {
    out.emplace_back(std::move(what), schema(std::move(json)));
  };
  OrderedJson far = properties({{std::string(400'000, 'k'), properties(object(1500, plain))}});
  add("many places behind a long name", far);
  OrderedJson far_ref = far;
  far_ref["properties"]["a"] = {{"$ref", "#/properties/" + std::string(400'000, 'k')}};
  add("a reference to a long name", std::move(far_ref));
  add("many properties", properties(object(2000, plain)));
  add("many optional ones, counted", {{"type", "object"},
                                      {"properties", object(1900, plain)},
                                      {"minProperties", 900},
                                      {"maxProperties", 950}});
  add("many objects of many properties",
      properties(object(100, [](int) { return properties(object(300, plain)); })));
  add("many required names", {{"type", "object"}, {"required", list(60'000, name)}});
  add("many patterns of names", {{"type", "object"}, {"patternProperties", object(1500, plain)}});
  add("patterns of names beside names",
      {{"type", "object"},
       {"properties", object(300, plain)},
       {"patternProperties", {{"^[a-z]{1,300}$", plain(0)}, {"^p[0-9a-f]{1,300}$", plain(0)}}}});
  add("counted repeats in a pattern", {{"type", "string"}, {"pattern", "(a|b)*a(a|b){24}"}});
  add("nested repeats in a pattern",
      {{"type", "string"}, {"pattern", "^((([a-z]{1,40}){1,40}){1,40})$"}});
  add("a pattern beside a length",
      {{"type", "string"}, {"pattern", "(ab|ba){1,700}x"}, {"maxLength", 2000}});
  add("many patterns together",
      {{"allOf", list(60, [](int i) {
          return OrderedJson{{"type", "string"}, {"pattern", "a.{" + std::to_string(i) + "}b"}};
        })}});
  add("many strings with patterns", properties(object(1500, [](int i) {
        return OrderedJson{{"type", "string"},
                           {"pattern", "^[a-f0-9]{" + std::to_string(i) + "}$"}};
      })));
  add("multiples", properties(object(200, [](int i) {
        return OrderedJson{{"type", "number"}, {"multipleOf", 0.001 * (i + 700)}, {"minimum", i}};
      })));
  add("bounds of numbers", properties(object(1500, [](int i) {
        return OrderedJson{{"type", "number"}, {"minimum", -1e40 + i}, {"maximum", 1e40 / (i + 1)}};
      })));
  add("many items counted", {{"type", "array"},
                             {"minItems", 9000},
                             {"maxItems", 9999},
                             {"items", properties(object(30, plain))}});
  add("dependentRequired of each other",
      {{"type", "object"}, {"dependentRequired", object(150, [](int i) {
                              return list(3, [&](int j) { return name(i + j); });
                            })}});
  return out;
}

Cases hostile_texts() {
  auto many_sets = [](const char* format) {
    return times(3000, [&](int i) {
      std::string out = format;
      for (int bit = 0; bit < 12; ++bit) out += i >> bit & 1 ? static_cast<char>('a' + bit) : 'z';
      return out + "]";
    });
  };
  Cases out = {
      {"regex: subsets", regex("(a|b)*a(a|b){40}")},
      {"regex: repeats of repeats", regex("((((a{1000}){1000}){1000}){1000})")},
      {"regex: small repeats of repeats",
       regex(times(40, [](int) { return "("; }) + "a" + times(40, [](int) { return "){15}"; }))},
      {"regex: repeats of nothing",
       regex(times(90, [](int) { return "("; }) + times(90, [](int) { return "){99999}"; }))},
      {"regex: optional ones", regex(times(20'000, [](int) { return "a?"; }))},
      {"regex: stars", regex(times(20'000, [](int) { return "a*"; }))},
      {"regex: branches", regex(times(20'000, [](int i) { return std::to_string(i) + "|"; }))},
      {"regex: different sets", regex(many_sets("["))},
      {"regex: classes", regex(times(5000, [](int) { return "[^\\W\\S]{0,3}.?"; }))},
      {"regex: one large set",
       regex("[" + times(15'000, [](int i) { return std::string(i % 2 ? "éж" : "a日"); }) + "]*")},
      {"regex: letters of all alphabets, many times",
       regex("([\\u0100-\\uabcd][^\\u1234-\\u4321]){1,5000}")},
      {"gbnf: many rules", gbnf("root ::= r0\n" +
                                times(6000,
                                      [](int i) {
                                        return "r" + std::to_string(i) + " ::= \"a\" r" +
                                               std::to_string(i + 1) + " | \"b\"\n";
                                      }) +
                                "r6000 ::= \"c\"\n")},
      {"gbnf: rules that double", gbnf("root ::= r0\n" +
                                       times(60,
                                             [](int i) {
                                               const std::string next = "r" + std::to_string(i + 1);
                                               return "r" + std::to_string(i) + " ::= " + next +
                                                      " " + next + "\n";
                                             }) +
                                       "r60 ::= [a-z] | \"(\" root \")\"\n")},
      {"gbnf: empty rules that double",
       gbnf("root ::= r0 \"x\"\n" +
            times(200,
                  [](int i) {
                    const std::string next = "r" + std::to_string(i + 1);
                    return "r" + std::to_string(i) + " ::= " + next + " " + next + " | \"\"\n";
                  }) +
            "r200 ::= \"\"\n")},
      {"gbnf: groups that fail to be terminals",
       gbnf("root ::= " + times(99, [](int) { return "(\"a\" | "; }) +
            "([ab]* \"a\" [ab]{30} | root)" + times(99, [](int) { return ")*"; }))},
      {"gbnf: many parts that are too large",
       gbnf("root ::= x\n" +
            times(3000,
                  [](int i) {
                    return "s" + std::to_string(i) + " ::= [ab]* \"a\" [ab]{" +
                           std::to_string(12 + i % 9) + "}\n";
                  }) +
            "x ::= " + times(3000, [](int i) { return "s" + std::to_string(i) + " x | "; }) +
            "\"\"\n")},
      {"gbnf: repeats of rules", gbnf("root ::= (a{1000}){1000}\na ::= \"x\" | \"(\" root \")\"")},
      {"gbnf: ambiguous",
       gbnf("root ::= a*\na ::= \"x\" b | \"x\" c\nb ::= a* | root\nc ::= a* b")},
      {"gbnf: a wide choice of rules",
       gbnf("root ::= " +
            times(20'000, [](int i) { return "\"" + std::to_string(i) + "\" root | "; }) + "\"\"")},
  };
  auto choices = [](int count, std::size_t size) {
    Asked asked = {.kind = Asked::Kind::kChoice};
    for (int i = 0; i < count; ++i) {
      asked.choices.push_back(std::to_string(i * 7919) + std::string(size, 'x'));
    }
    return asked;
  };
  out.emplace_back("many choices", choices(4096, 20));
  out.emplace_back("long choices", choices(4096, 240));
  out.emplace_back("few choices, very long", choices(4, 300'000));
  Asked tools = {.kind = Asked::Kind::kFree};
  tools.calls = {.before_name = "<tool_call>{\"name\": \"",
                 .after_name = "\", \"arguments\": ",
                 .after_arguments = "}</tool_call>",
                 .tags = {"<tool_call>", "</tool_call>"},
                 .tag = "<tool_call>"};
  for (int i = 0; i < 128; ++i) {
    tools.calls.tools.push_back({"f" + std::to_string(i), properties(object(60, plain))});
  }
  out.emplace_back("many tools", std::move(tools));
  return out;
}

milliseconds processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::duration_cast<milliseconds>(std::chrono::seconds(now.tv_sec) +
                                                  std::chrono::nanoseconds(now.tv_nsec));
}

// The time beyond the deadline, of making it and giving it back.
milliseconds overshoot(const Asked& asked, milliseconds deadline, std::string& end) {
  const milliseconds begin = processor_time();
  try {
    const Vocabulary vocabulary = bytes_alone();
    Budget budget({.time = deadline});
    Grammar made(rules_of(asked, vocabulary, budget), vocabulary, budget);
    end = "made";
  } catch (const GrammarError& e) {
    end = e.what();
  }
  return processor_time() - begin - deadline;
}

void check(const Cases& all) {
  for (const auto& [what, asked] : all) {
    for (int ms : {0, 3, 30, 150, 700, 4500}) {
      std::string end;
      const milliseconds beyond = overshoot(asked, milliseconds(ms), end);
      EXPECT_LT(beyond, kSlack) << what << ", deadline " << ms << " ms: " << end;
      // Longer deadlines are for what goes on.
      if (end == "made" || end.find("takes too long") == std::string::npos) break;
    }
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    if (!kIsSanitized) {
      ASSERT_LT(used.ru_maxrss / 1024, kMostMegabytes) << what;
    }
  }
}

TEST(GrammarLimits, SchemasOfManyBranchesEndAtTheirDeadline) { check(schemas_of_many_branches()); }
TEST(GrammarLimits, SchemasOfManyNamesAndTextsEndAtTheirDeadline) {
  check(schemas_of_many_names_and_texts());
}
TEST(GrammarLimits, HostileTextsEndAtTheirDeadline) { check(hostile_texts()); }

TEST(GrammarLimits, ABudgetThatIsSpentStaysSpent) {
  Budget budget({.steps = 100'000});
  EXPECT_THROW(budget.spend(200'000), GrammarError);
  for (int i = 0; i < 10; ++i) EXPECT_THROW(budget.spend(), GrammarError);
}

}  // namespace
}  // namespace stretto::grammar
