// JSON, environment, error texts: what stands between a hostile file or a typo and a crash or a
// misleading message.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <new>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/printable.h"
#include "stretto/base/python_json.h"
#include "stretto/base/test_errors.h"

namespace stretto {
namespace {

void refuse(const std::string& text, const std::vector<std::string>& parts,
            const JsonLimits& limits = {}) {
  SCOPED_TRACE(printable(text));
  expect_user_error([&] { parse_json(text, "x.json", limits); }, parts);
}

TEST(Json, ParsesWhatIsValid) {
  Json json = parse_json(R"({"a": [1, -2, 3.5, true, null], "b": {"a": "é\u00e9"}})", "x.json");
  EXPECT_EQ(json["a"].size(), 5u);
  EXPECT_EQ(json["b"]["a"], "éé");
}

TEST(Json, DepthIsBoundedExactly) {
  auto nested = [](int depth, const char* open, const char* close) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += "1";
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  JsonLimits limits{.max_depth = 5};
  EXPECT_NO_THROW(parse_json(nested(5, "[", "]"), "x.json", limits));
  EXPECT_NO_THROW(parse_json(nested(5, "{\"a\":", "}"), "x.json", limits));
  refuse(nested(6, "[", "]"), {"x.json", "deeper than 5"}, limits);
  refuse(nested(6, "{\"a\":", "}"), {"x.json", "deeper than 5"}, limits);
  refuse(std::string(1 << 20, '['), {"x.json", "deeper than 64"});
}

TEST(Json, DuplicateKeysAreRefusedPerObject) {
  refuse(R"({"a": 1, "a": 2})", {"x.json", "duplicate key 'a'"});
  refuse(R"({"b": {"a": 1, "c": 0, "a": 2}})", {"duplicate key 'a'"});
  refuse(R"([{"a": {}, "\u0061": 2}])", {"duplicate key 'a'"});
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 1}]})", "x.json"));
  refuse("{\"" + std::string(100000, 'k') + "\":1,\"" + std::string(100000, 'k') + "\":2}",
         {"duplicate key"});
}

TEST(Json, MalformedTextIsOneLineNamingTheFile) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\"}", "{\"a\":1,}", "nul", "[1] 2", "NaN", "[1e999]", "'a'", "01",
        "\"\x01\"", "// comment\n1", "\"\\ud800\"", "[\"\\x\"]"}) {
    refuse(text, {"x.json", "not valid JSON"});
  }
  refuse(std::string("[1]\0 [2]", 8), {"x.json", "not valid JSON"});
  refuse(std::string("[\"\0\"]", 5), {"x.json", "not valid JSON"});
  refuse("[\"" + std::string(1 << 20, 'x'), {"x.json", "not valid JSON"});
}

// As ai-dynamo/dynamo#2882: what transformers writes for a limit that is none.
TEST(Json, NumbersThatOnlyPythonKnows) {
  const char* text =
      R"({"a": [0.0, Infinity], "b": -Infinity, "c":NaN, "NaN": "-Infinity", "d\"NaN": 1})";
  Json json = parse_python_json(text, "x.json");
  EXPECT_EQ(json["a"], Json::array({0.0, "Infinity"}));
  EXPECT_EQ(json["b"], "-Infinity");
  EXPECT_EQ(json["c"], "NaN");
  EXPECT_EQ(json["NaN"], "-Infinity");
  EXPECT_EQ(json["d\"NaN"], 1);
  expect_user_error([&] { JsonFields(json, "x.json").number("c", 0, 1); }, {"x.json: c", "'NaN'"});
  for (const char* bad : {"nan", "Infinit", "+Infinity", "NaN NaN", "NaN1", "\"\\", "\"NaN"}) {
    SCOPED_TRACE(bad);
    expect_user_error([&] { parse_python_json(bad, "x.json"); }, {"x.json", "not valid JSON"});
  }
  refuse("[Infinity]", {"x.json", "not valid JSON"});
}

TEST(Json, Utf16IsNamed) {
  refuse(std::string("\xff\xfe{\0}\0", 6), {"x.json", "not valid JSON: UTF-16"});
  refuse(std::string("\xfe\xff\0{\0}", 6), {"x.json", "not valid JSON: UTF-16"});
}

TEST(Json, InvalidUtf8IsRefused) {
  for (const char* bytes :
       {"\xff", "\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    refuse(std::string("[\"") + bytes + "\"]", {"x.json", "not valid JSON"});
    refuse(std::string("{\"") + bytes + "\": 1}", {"x.json", "not valid JSON"});
  }
}

TEST(Json, SizeIsBounded) {
  refuse("[1,2,3]", {"x.json", "7 bytes", "at most 6"}, {.max_bytes = 6});
  EXPECT_NO_THROW(parse_json("[1,2,3]", "x.json", {.max_bytes = 7}));
}

TEST(Json, FilesThatCannotBeReadAreNamed) {
  std::filesystem::path dir =
      std::filesystem::temp_directory_path() / ("stretto_base_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "a.json") << "{\"a\": 7}";
  EXPECT_EQ(read_json_file(dir / "a.json")["a"], 7);
  EXPECT_EQ(read_file(dir / "a.json", 8), "{\"a\": 7}");
  expect_user_error([&] { read_file(dir / "a.json", 7); }, {"a.json", "larger than the 7 bytes"});
  expect_user_error([&] { read_file(dir, 100); }, {dir.string(), "is a directory"});
  expect_user_error([&] { read_file(dir / "no", 100); }, {(dir / "no").string(), "No such file"});
  std::filesystem::remove_all(dir);
}

TEST(JsonFields, ReadTypedValuesWithinBounds) {
  Json json = parse_json(R"({"n": 7, "x": 2.5, "t": "hi", "b": true, "list": [1, 2], "null": null,
                             "names": ["a", "b"]})",
                         "c.json");
  JsonFields fields(json, "c.json");
  EXPECT_EQ(fields.integer("n", 7, 7), 7);
  EXPECT_EQ(fields.number("x", 2.5, 3), 2.5);
  EXPECT_EQ(fields.number("n", 0, 10), 7);
  EXPECT_EQ(fields.text("t"), "hi");
  EXPECT_EQ(fields.optional_boolean("b"), true);
  EXPECT_EQ(fields.integers("list", 0, 9), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(fields.integers("n", 0, 9), (std::vector<std::int64_t>{7}));
  EXPECT_EQ(fields.optional_texts("names", 2)->at(1), "b");
  for (const char* absent : {"null", "nowhere"}) {
    EXPECT_FALSE(fields.has(absent));
    EXPECT_EQ(fields.optional_integer(absent, 0, 1), std::nullopt);
    EXPECT_EQ(fields.optional_text(absent), std::nullopt);
    EXPECT_TRUE(fields.integers(absent, 0, 1).empty());
    expect_user_error([&] { fields.integer(absent, 0, 1); }, {"c.json", absent, "missing"});
  }
}

TEST(JsonFields, RefuseWrongTypesAndRanges) {
  Json json = parse_json(
      R"({"n": 7, "neg": -1, "huge": 18446744073709551615, "f": 7.0, "t": "hi\n", "big": 1e300,
                             "list": [1, "x"], "o": {}})",
      "c.json");
  JsonFields fields(json, "c.json");
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  for (const char* bad : {"neg", "huge", "f", "t", "list", "o"}) {
    expect_user_error([&] { fields.integer(bad, 0, kMax); },
                      {"c.json", bad, "whole number from 0"});
  }
  expect_user_error([&] { fields.integer("n", 0, 6); },
                    {"c.json: n: need a whole number from 0 to 6, got 7"});
  expect_user_error([&] { fields.number("big", 0, 10); }, {"big", "need a number from 0 to 10"});
  expect_user_error([&] { fields.number("t", 0, 10); }, {"t", "got 'hi\\x0a'"});
  expect_user_error([&] { fields.optional_boolean("n"); }, {"n", "true or false"});
  expect_user_error([&] { fields.text("n"); }, {"n", "need a string"});
  expect_user_error([&] { fields.integers("list", 0, 9); }, {"list", "got 'x'"});
  expect_user_error([&] { fields.optional_texts("list", 1); }, {"list", "at most 1"});
  expect_user_error([&] { JsonFields(json["list"], "c.json: list"); },
                    {"c.json: list", "need a JSON object"});
}

TEST(Printable, WhatWentWrongIsToldInWordsForUsers) {
  EXPECT_EQ(reason_of(std::bad_alloc()), "not enough memory");
  EXPECT_EQ(reason_of(std::bad_array_new_length()), "not enough memory");
  EXPECT_EQ(reason_of(UserError("no such file")), "no such file");
}

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("grüße €𝄞 a/b"), "grüße €𝄞 a/b");
  EXPECT_EQ(printable("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xff\xc3(\xed\xa0\x80\xc2\x9b"), "\\xff\\xc3(\\xed\\xa0\\x80\\xc2\\x9b");
  EXPECT_EQ(printable(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("aé", 2), "a...");  // a character is never cut in two
  EXPECT_EQ(printable("abc", 3), "abc");
}

class WithVariable {
 public:
  WithVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~WithVariable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Env, TimeoutIsAWholeNumberOfMilliseconds) {
  for (auto [text, ms] : {std::pair{"1", 1}, {"250", 250}, {"86400000", 86400000}, {"", 10000}}) {
    WithVariable set("STRETTO_TIMEOUT_MS", text);
    EXPECT_EQ(env_timeout().count(), ms) << text;
  }
  WithVariable unset("STRETTO_TIMEOUT_MS", nullptr);
  EXPECT_EQ(env_timeout().count(), 10000);
  for (const char* bad : {"0", "-5", "1.5", "10s", " 7", "86400001", "99999999999999999999", "x"}) {
    WithVariable set("STRETTO_TIMEOUT_MS", bad);
    expect_user_error(env_timeout, {"STRETTO_TIMEOUT_MS", bad});
  }
}

TEST(Env, CacheSizeIsAWholeNumberOfMegabytes) {
  for (auto [text, mb] : {std::pair{"1", 1}, {"300", 300}, {"", 2048}}) {
    WithVariable set("STRETTO_CACHE_MB", text);
    EXPECT_EQ(env_cache_bytes(), std::uint64_t(mb) << 20) << text;
  }
  for (const char* bad : {"0", "-5", "1G", "1073741825", "x"}) {
    WithVariable set("STRETTO_CACHE_MB", bad);
    expect_user_error(env_cache_bytes, {"STRETTO_CACHE_MB", bad});
  }
}

TEST(Env, CacheDirectoryFollowsTheVariablesInOrder) {
  WithVariable home("HOME", "/h");
  {
    WithVariable xdg("XDG_CACHE_HOME", "/x");
    {
      WithVariable own("STRETTO_CACHE_DIR", "/own");
      EXPECT_EQ(env_cache_dir(), "/own");
    }
    WithVariable own("STRETTO_CACHE_DIR", "");
    EXPECT_EQ(env_cache_dir(), "/x/stretto");
  }
  WithVariable own("STRETTO_CACHE_DIR", nullptr);
  WithVariable xdg("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(env_cache_dir(), "/h/.cache/stretto");
  WithVariable no_home("HOME", nullptr);
  WithVariable bad_tmp("TMPDIR", "/nowhere/at/all");
  expect_user_error(env_cache_dir, {"STRETTO_CACHE_DIR", "TMPDIR"});
}

TEST(Errors, AFaultSaysWhoWaitedForWhat) {
  FaultRecord record{.program = "ag_gemm",
                     .role = "gemm",
                     .rank = 1,
                     .tile = 7,
                     .signal = "gathered",
                     .channel = 3,
                     .expected = 5,
                     .seen = 4,
                     .waited_for = 2,
                     .reason = "deadline"};
  Fault fault(record);
  EXPECT_STREQ(fault.what(),
               "ag_gemm: role 'gemm' on rank 1, tile 7, waiting for signal 'gathered'[3] >= 5, "
               "last seen 4, from "
               "rank 2: deadline");
  EXPECT_EQ(fault.record().seen, 4);
  FaultRecord bare{.program = "p", .role = "r", .rank = 0, .reason = "rank 3 died"};
  EXPECT_EQ(bare.to_string(), "p: role 'r' on rank 0: rank 3 died");
  bare.role = "";  // GPUs' tables that all blocks check are no role's
  EXPECT_EQ(bare.to_string(), "p: rank 0: rank 3 died");
}

TEST(Errors, TypesTellTheFiveFailuresApart) {
  auto kind = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const UserError&) {
      return "user";
    } catch (const Rejected&) {
      return "rejected";
    } catch (const InternalError&) {
      return "internal";
    } catch (const DeviceError&) {
      return "device";
    } catch (const Fault&) {
      return "fault";
    }
    return "none";
  };
  EXPECT_EQ(kind([] { throw UserError("x"); }), "user");
  EXPECT_EQ(kind([] { throw Rejected("x"); }), "rejected");
  EXPECT_EQ(kind([] { STRETTO_CHECK(1 == 2, "x"); }), "internal");
  EXPECT_EQ(kind([] { throw DeviceError("x"); }), "device");
  EXPECT_EQ(kind([] { throw Fault(FaultRecord{}); }), "fault");
  EXPECT_EQ(kind([] { STRETTO_CHECK(1 == 1, "x"); }), "none");
}

TEST(Errors, AFailedCheckNamesFileLineAndCondition) {
  try {
    STRETTO_CHECK(2 + 2 == 5, "arithmetic is broken");
    FAIL();
  } catch (const InternalError& e) {
    std::string what = e.what();
    EXPECT_NE(what.find("base_test.cc:"), std::string::npos) << what;
    EXPECT_NE(what.find("2 + 2 == 5"), std::string::npos) << what;
    EXPECT_NE(what.find("arithmetic is broken"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace stretto
