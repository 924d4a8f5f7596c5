// If these fail, a schema is taken for another one, or refused at a place where it is right.
#include "stretto/server/grammar/schema_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stretto::grammar {
namespace {

class SchemaReading : public testing::Test {
 protected:
  SchemaPlace read(const char* text) {
    root_ = OrderedJson::parse(text);
    return reader_.root();
  }
  template <typename Call>
  void expect_refused(const Call& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "accepted; should say: " << part;
    } catch (const GrammarError& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  OrderedJson root_;
  Budget budget_;
  SchemaReader reader_{root_, budget_};
};

TEST_F(SchemaReading, ReferencesLeadToTheirPlaces) {
  SchemaPlace at = read(R"({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"$ref": "#/$defs/n"},
                            "n": {"type": "integer"}}})");
  EXPECT_EQ(reader_.resolved(at, "$ref").schema, &root_["$defs"]["a/b c"]);
  EXPECT_EQ(reader_.followed(at).schema, &root_["$defs"]["n"]);
  at = read(R"({"$ref": "#/nowhere"})");
  expect_refused([&] { reader_.followed(at); }, "leads nowhere");
  at = read(R"({"$ref": "#"})");
  expect_refused([&] { reader_.followed(at); }, "circle");
  at = read(R"({"$ref": "other.json"})");
  expect_refused([&] { reader_.followed(at); }, "need '#' or '#/...'");
}

TEST_F(SchemaReading, KeywordsThatAreNotHonouredAreNamed) {
  SchemaReader::check_keywords(read(R"({"type": "string", "title": "t", "x-mine": 1})"));
  const SchemaPlace at = read(R"({"contains": {}})");
  expect_refused([&] { SchemaReader::check_keywords(at); }, "'contains' is not supported");
  EXPECT_TRUE(read(R"({"$ref": "#", "title": "t"})").has_only("$ref"));
  EXPECT_FALSE(read(R"({"$ref": "#", "minimum": 1})").has_only("$ref"));
}

TEST_F(SchemaReading, BranchesAreToldApartByTypesOrValues) {
  auto apart = [&](const char* text) {
    return reader_.told_apart_by(reader_.branches(read(text), "oneOf"));
  };
  EXPECT_FALSE(apart(R"({"oneOf": [{"type": "string"}, {"type": "null"}]})").alike);
  EXPECT_FALSE(apart(R"({"oneOf": [{"const": 1}, {"enum": [2, 3]}]})").alike);
  EXPECT_TRUE(apart(R"({"oneOf": [{"const": 1}, {"enum": [1.0, 3]}]})").alike) << "the same value";
  const auto by = apart(R"({"oneOf": [
      {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]},
      {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]}]})");
  EXPECT_FALSE(by.alike);
  EXPECT_EQ(by.by, (std::set<std::string>{"kind"}));
}

TEST_F(SchemaReading, ObjectsAndArrays) {
  const auto object = reader_.object(read(R"({"properties": {"a": true, "b": {}}, "required": ["b"],
      "additionalProperties": false})"),
                                     {}, 100);
  ASSERT_EQ(object.members.size(), 2u);
  EXPECT_EQ(object.members[0].name, "a");
  EXPECT_FALSE(object.members[0].is_required);
  EXPECT_TRUE(object.members[1].is_required);
  EXPECT_FALSE(object.additional);
  const auto array =
      reader_.array(read(R"({"prefixItems": [true], "items": {"type": "null"}, "minItems": 1,
      "maxItems": 4, "uniqueItems": true})"),
                    100);
  EXPECT_EQ(array.first.size(), 1u);
  EXPECT_TRUE(array.items.has_value());
  EXPECT_EQ(array.min, 1);
  EXPECT_EQ(array.max, 4);
  EXPECT_TRUE(array.is_unique);
}

TEST_F(SchemaReading, ValuesThatTheTypesLeave) {
  std::vector<const OrderedJson*> left =
      reader_.values(read(R"({"enum": [1, "a", 2.5, null], "type": ["integer", "null"]})"));
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(*left[0], 1);
  EXPECT_TRUE(left[1]->is_null());
}

}  // namespace
}  // namespace stretto::grammar
