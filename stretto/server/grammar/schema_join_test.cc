// If these fail, an answer may break one of the parts of a schema, or no answer fits them all.
#include "stretto/server/grammar/schema_join.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace stretto::grammar {
namespace {

OrderedJson json(const char* text) { return OrderedJson::parse(text); }

class SchemaJoin : public testing::Test {
 protected:
  // The whole schema, put together.
  OrderedJson joined(const char* text) {
    root_ = json(text);
    return *joiner_.joined(reader_.root()).schema;
  }
  std::optional<OrderedJson> negated(const char* text) {
    root_ = json(text);
    return joiner_.negated(reader_.root());
  }
  void expect_refused(const char* text, const std::string& part) {
    try {
      joined(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const GrammarError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  OrderedJson root_;
  Budget budget_;
  SchemaReader reader_{root_, budget_};
  SchemaJoiner joiner_{reader_, budget_};
};

TEST_F(SchemaJoin, TheNarrowerBoundHolds) {
  EXPECT_EQ(joined(R"({"allOf": [{"minimum": 1, "maximum": 9}, {"minimum": 3}], "maximum": 7})"),
            json(R"({"minimum": 3, "maximum": 7})"));
  EXPECT_EQ(joined(R"({"allOf": [{"multipleOf": 4}, {"multipleOf": 6}]})"),
            json(R"({"multipleOf": 12})"));
}

TEST_F(SchemaJoin, TypesAndValuesOfAllParts) {
  EXPECT_EQ(joined(R"({"allOf": [{"type": ["number", "string"]}, {"type": "integer"}]})"),
            json(R"({"type": ["integer"]})"));
  EXPECT_EQ(joined(R"({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 2, 5]}]})"),
            json(R"({"enum": [2, 3]})"));
  EXPECT_EQ(joined(R"({"allOf": [{"const": 1}, {"const": 2}]})")["enum"], OrderedJson::array());
  EXPECT_EQ(joined(R"({"allOf": [{"type": "string"}, false]})")["enum"], OrderedJson::array());
}

// A property that one part lists and the other one forbids may not be there.
TEST_F(SchemaJoin, PropertiesOfBothAndOthers) {
  OrderedJson made = joined(R"({"allOf": [
      {"properties": {"a": {"type": "string"}}, "additionalProperties": false},
      {"properties": {"a": {"minLength": 2}, "b": true}, "required": ["a"]}]})");
  EXPECT_EQ(made["properties"]["a"], json(R"({"allOf": [{"type": "string"}, {"minLength": 2}]})"));
  EXPECT_EQ(made["properties"]["b"], false);
  EXPECT_EQ(made["additionalProperties"], false);
  EXPECT_EQ(made["required"], json(R"(["a"])"));
}

TEST_F(SchemaJoin, ReferencesAreFollowed) {
  EXPECT_EQ(joined(R"({"$ref": "#/$defs/n", "maximum": 4, "$defs": {"n": {"type": "integer"}}})"),
            json(R"({"type": "integer", "maximum": 4})"));
  expect_refused(R"({"allOf": [{"$ref": "#"}]})", "too deeply");
  expect_refused(R"({"allOf": [{"contains": 1}]})", "'contains' is not supported");
}

TEST_F(SchemaJoin, WhatIsMadeStandsBesideWhatWasAsked) {
  root_ = json(R"({"a": {"minimum": 1}, "b": {"maximum": 2}})");
  const SchemaPlace a{&root_["a"], "/a"}, b{&root_["b"], "/b"};
  const SchemaPlace both = joiner_.both(a, b), without = joiner_.without(both, "minimum");
  EXPECT_EQ(*both.schema, json(R"({"minimum": 1, "maximum": 2})"));
  EXPECT_EQ(*without.schema, json(R"({"maximum": 2})"));
  EXPECT_EQ(both.path, "/b");
  EXPECT_EQ(root_, json(R"({"a": {"minimum": 1}, "b": {"maximum": 2}})"));
}

TEST_F(SchemaJoin, ShortKeywordsAreWrittenOut) {
  auto written_out = [&](const char* text) {
    root_ = json(text);
    return *joiner_.written_out(reader_.root()).schema;
  };
  EXPECT_EQ(written_out(R"({"items": [true, false], "additionalItems": {"type": "null"}})"),
            json(R"({"prefixItems": [true, false], "items": {"type": "null"}})"));
  EXPECT_EQ(written_out(R"({"not": {"type": ["string", "number", "null"]}})"),
            json(R"({"allOf": [{"type": ["object", "array", "boolean"]}]})"));
  const OrderedJson chosen = written_out(R"({"if": {"required": ["a"]}, "then": {"minimum": 1}})");
  const OrderedJson& branches = chosen["allOf"][0]["anyOf"];
  ASSERT_EQ(branches.size(), 2u);
  EXPECT_EQ(branches[0], json(R"({"allOf": [{"required": ["a"]}, {"minimum": 1}]})"));
  EXPECT_TRUE(branches[1]["anyOf"][0].contains(kForbidden));
  EXPECT_EQ(written_out(R"({"minimum": 1})"), json(R"({"minimum": 1})"));
}

TEST_F(SchemaJoin, NegatedWhereASchemaSaysSo) {
  EXPECT_EQ(negated("{}"), OrderedJson(false));
  EXPECT_EQ(negated("false"), OrderedJson(true));
  EXPECT_EQ(negated(R"({"not": {"minimum": 1}})"), json(R"({"minimum": 1})"));
  EXPECT_EQ(negated(R"({"anyOf": [{"minimum": 1}, {"type": "null"}]})"),
            json(R"({"allOf": [{"not": {"minimum": 1}}, {"not": {"type": "null"}}]})"));
  EXPECT_EQ(negated(R"({"minLength": 2, "maxLength": 3})"), std::nullopt);
}

// Of oneOf: each branch where the other one does not fit.
TEST_F(SchemaJoin, BranchesThatExcludeEachOther) {
  root_ = json(R"([{"type": "string"}, {"type": "null"}, {"minLength": 2}])");
  const SchemaPlace a{&root_[0], "/0"}, b{&root_[1], "/1"}, c{&root_[2], "/2"};
  auto apart = joiner_.exclusive({a, b}, {a, b});
  ASSERT_TRUE(apart.has_value());
  EXPECT_EQ(*(*apart)[0].schema, json(R"({"type": ["string"]})"));
  EXPECT_EQ(*(*apart)[1].schema, json(R"({"type": ["null"]})"));
  EXPECT_EQ(joiner_.exclusive({a, c}, {a, c}), std::nullopt);
}

}  // namespace
}  // namespace stretto::grammar
