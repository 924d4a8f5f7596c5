// A user with a truncated download or a tampered file must get one clear line, never a crash or
// somebody else's bytes.
#include "stretto/model/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/model/checkpoint/test_files.h"

namespace stretto::safetensors_test {
namespace {

TensorMap parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "w.safetensors");
}

void refuse(const std::string& bytes, std::vector<std::string> parts) {
  parts.push_back("w.safetensors: ");
  expect_user_error([&] { parse(bytes); }, parts);
}

// A file with these claims over `data_bytes` zero bytes.
void refuse_claims(const std::vector<ClaimedTensor>& claims, std::size_t data_bytes,
                   const std::vector<std::string>& parts) {
  refuse(safetensors_bytes(safetensors_header(claims), std::string(data_bytes, '\0')), parts);
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  struct Kind {
    const char* stored;
    DType dtype;
  };
  const std::vector<Kind> kinds = {{"I64", DType::kI64},   {"F32", DType::kF32},
                                   {"I32", DType::kI32},   {"F16", DType::kF16},
                                   {"BF16", DType::kBF16}, {"F8_E4M3", DType::kF8E4M3},
                                   {"U8", DType::kU8},     {"BOOL", DType::kBool}};
  for (int round = 0; round < 50; ++round) {
    std::vector<HonestTensor> tensors;
    std::vector<DType> dtypes;
    for (const Kind& kind : kinds) {  // by descending size, so that all are aligned
      HonestTensor t{.name = std::string("t.") + kind.stored, .dtype = kind.stored};
      std::size_t bytes = size_bytes(kind.dtype);
      for (std::size_t rank = random() % 4; rank > 0; --rank)
        t.shape.push_back(static_cast<int>(random() % 5));
      for (std::int64_t extent : t.shape) bytes *= static_cast<std::size_t>(extent);
      for (std::size_t i = 0; i < bytes; ++i) t.data += static_cast<char>(random());
      tensors.push_back(t);
      dtypes.push_back(kind.dtype);
    }
    std::string bytes = safetensors_bytes(tensors);
    TensorMap read = parse(bytes);
    ASSERT_EQ(read.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorView& view = read.at(tensors[i].name);
      EXPECT_EQ(view.dtype, dtypes[i]);
      EXPECT_EQ(view.shape, tensors[i].shape);
      EXPECT_EQ(view.num_elements() * static_cast<std::int64_t>(size_bytes(dtypes[i])),
                static_cast<std::int64_t>(tensors[i].data.size()));
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.data), view.size_bytes),
                tensors[i].data);
    }
  }
}

TEST(Safetensors, EveryTruncationIsRefused) {
  std::string whole =
      safetensors_bytes({{"a", "F32", {2}, "12345678"}, {"b", "F16", {3}, "123456"}});
  ASSERT_EQ(parse(whole).size(), 2u);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse(whole.substr(0, size)), UserError) << size;
  }
  EXPECT_THROW(parse(whole + 'x'), UserError);
}

TEST(Safetensors, HeaderLengthThatLies) {
  std::string header = safetensors_header({{"a"}});
  std::string good = safetensors_bytes(header, "1234");
  for (std::uint64_t lie : {std::uint64_t{0}, header.size() + 5, std::uint64_t{1} << 32,
                            ~std::uint64_t{0}, ~std::uint64_t{0} - 7, std::uint64_t{1} << 63}) {
    std::string bytes = good;
    std::memcpy(bytes.data(), &lie, 8);
    EXPECT_THROW(parse(bytes), UserError) << lie;
    if (lie > header.size()) refuse(bytes, {"header length", std::to_string(lie)});
  }
}

TEST(Safetensors, HeaderThatIsNotWhatItShouldBe) {
  refuse(safetensors_bytes("", ""), {"header", "does not start with '{'"});
  refuse(safetensors_bytes("[1, 2]", ""), {"header"});
  refuse(safetensors_bytes(" {}", ""), {"header"});
  refuse(safetensors_bytes("{\"a\":", ""), {"header", "not valid JSON"});
  refuse(safetensors_bytes("{\"a\":1}", ""), {"tensor 'a'", "need a JSON object"});
  refuse(safetensors_bytes("{\"\xff\":1}", ""), {"not valid JSON"});
  refuse(safetensors_bytes("{\"a\":" + std::string(1000, '['), ""), {"deeper than"});
  EXPECT_TRUE(parse(safetensors_bytes("{\"__metadata__\":{\"format\":1}}", "")).empty());
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).empty());
}

TEST(Safetensors, NamesTwice) {
  refuse_claims({{.name = "a", .begin = 0, .end = 4}, {.name = "a", .begin = 4, .end = 8}}, 8,
                {"duplicate key 'a'"});
}

TEST(Safetensors, RangesThatLie) {
  ClaimedTensor a{.name = "a", .begin = 0, .end = 4};
  ClaimedTensor b{.name = "b", .begin = 4, .end = 8};
  refuse_claims({a, {.name = "b", .begin = 0, .end = 4}}, 4, {"tensor 'b'", "overlap", "4 bytes"});
  refuse_claims({a, {.name = "b", .shape = "[2]", .begin = 0, .end = 8}}, 8,
                {"tensor 'b'", "overlap"});
  refuse_claims({a, {.name = "b", .begin = 8, .end = 12}}, 12, {"tensor 'b'", "gap of 4"});
  refuse_claims({b}, 8, {"tensor 'b'", "gap of 4"});
  refuse_claims({a}, 12, {"8 bytes at the end belong to no tensor"});
  refuse_claims({a, b}, 4, {"tensor 'b'", "data_offsets", "from 0 to 4", "8"});
  refuse_claims({{.name = "a", .begin = -4, .end = 0}}, 4, {"tensor 'a'", "data_offsets", "-4"});
  refuse_claims({{.name = "a", .begin = 4, .end = 0}}, 4, {"tensor 'a'", "end 0 before begin 4"});
}

TEST(Safetensors, RangesThatAreNotARange) {
  auto with = [](const std::string& offsets) {
    return safetensors_bytes(
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + offsets + "}}", "1234");
  };
  for (const char* offsets : {"[0]", "[0,4,8]", "4", "null", "{}", "[0,\"4\"]", "[0,4.0]",
                              "[0,1e3]", "[0,18446744073709551612]", "[0,1e400]", "[[0],4]"}) {
    refuse(with(offsets), {});
  }
  refuse(safetensors_bytes("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "1234"),
         {"tensor 'a'", "data_offsets"});
}

TEST(Safetensors, ShapesThatLie) {
  auto claim = [](const std::string& shape) {
    return std::vector<ClaimedTensor>{{.name = "a", .shape = shape}};
  };
  refuse_claims(claim("[2]"), 4, {"tensor 'a'", "4 bytes", "takes 8"});
  refuse_claims(claim("[0]"), 4, {"tensor 'a'", "takes 0"});
  refuse_claims(claim("[-1]"), 4, {"tensor 'a'", "shape", "-1"});
  refuse_claims(claim("[-1,-1]"), 4, {"tensor 'a'", "shape"});
  refuse_claims(claim("[1.0]"), 4, {"tensor 'a'", "shape"});
  refuse_claims(claim("1"), 4, {"tensor 'a'", "shape"});
  refuse_claims(claim("[4294967296,4294967296]"), 4, {"tensor 'a'", "shape", "overflows"});
  refuse_claims(claim("[2147483648,2147483648,4]"), 4, {"tensor 'a'", "overflows"});
  refuse_claims(claim("[9223372036854775807,9223372036854775807,0]"), 4,
                {"tensor 'a'", "overflows"});
  refuse_claims(claim("[18446744073709551615]"), 4, {"tensor 'a'", "shape"});
  refuse_claims(claim("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"), 4,
                {"tensor 'a'", "shape", "at most 16"});
  refuse(safetensors_bytes("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "1234"),
         {"tensor 'a'", "shape"});
}

TEST(Safetensors, DTypesThatAreNotKnown) {
  for (const char* dtype : {"F65", "f32", "", "Q4", "bfloat16"}) {
    refuse_claims({{.name = "a", .dtype = dtype}}, 4, {"tensor 'a'", "dtype", dtype, "BF16"});
  }
  refuse(safetensors_bytes("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "1234"),
         {"tensor 'a'", "dtype"});
  refuse(safetensors_bytes("{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}", "1234"),
         {"dtype"});
}

// Writers leave headers of any length, and bytes before words: data loads wherever it lies.
TEST(Safetensors, DataOfAnyAlignment) {
  for (std::size_t odd = 0; odd < 8; ++odd) {
    std::string header = safetensors_header(
        {{.name = "a", .dtype = "U8", .begin = 0, .end = 1}, {.name = "b", .begin = 1, .end = 5}},
        1);
    while ((header.size() + 8) % 8 != odd) header += ' ';
    std::string file = safetensors_bytes(header, "x1234");
    EXPECT_EQ(std::memcmp(parse(file).at("b").data, "1234", 4), 0) << odd;
  }
}

TEST(Safetensors, DTypesThatAreNotReadAreBounded) {
  std::string file = safetensors_bytes(
      safetensors_header({{.name = "a", .dtype = "F64", .shape = "[1]", .begin = 0, .end = 8}}),
      "12345678");
  EXPECT_EQ(parse(file).at("a").unread_dtype, "F64");
  refuse_claims({{.name = "a", .dtype = "I16"}}, 4, {"tensor 'a'", "4 bytes"});
  refuse_claims({{.name = "a", .dtype = "F4", .shape = "[3]", .begin = 0, .end = 1}}, 1,
                {"tensor 'a'", "whole bytes"});
}

TEST(Safetensors, RandomDamageNeverEscapes) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(testing::Message() << "STRETTO_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  std::string whole =
      safetensors_bytes({{"a", "F32", {2}, "12345678"}, {"b", "F16", {3}, "123456"}});
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = whole;
    for (std::size_t n = 1 + random() % 3; n > 0; --n)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      for (const auto& [name, view] : parse(damaged)) {
        auto begin = reinterpret_cast<const char*>(view.data) - damaged.data();
        ASSERT_GE(begin, 8);
        ASSERT_LE(begin + static_cast<std::ptrdiff_t>(view.size_bytes),
                  static_cast<std::ptrdiff_t>(damaged.size()));
      }
    } catch (const UserError&) {
    }
  }
}

TEST(SafetensorsFile, MapsAFileAndSurvivesAMove) {
  TemporaryDirectory dir;
  SafetensorsFile file(
      dir.write("x.safetensors", safetensors_bytes({{"a", "F32", {2}, "12345678"}})));
  const TensorView* view = &file.tensors().at("a");
  SafetensorsFile moved = std::move(file);
  EXPECT_EQ(&moved.tensors().at("a"), view);
  EXPECT_EQ(std::memcmp(view->data, "12345678", 8), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view->data) % 4, 0u);
}

TEST(SafetensorsFile, WhatIsNotAFileIsNamed) {
  TemporaryDirectory dir;
  auto fails = [](const std::filesystem::path& path, const char* part) {
    try {
      SafetensorsFile file(path);
      ADD_FAILURE() << path << " was opened";
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(path.string()), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  fails(dir.path() / "missing", "is missing");
  fails(dir.path(), "is a directory");
  fails(dir.write("empty", ""), "0 bytes");
  ASSERT_EQ(::mkfifo((dir.path() / "fifo").c_str(), 0600), 0);
  fails(dir.path() / "fifo", "not a regular file");
}

// What a server has read may be read again hours later.
TEST(SafetensorsFile, WhatOtherProgramsDoToItIsSeen) {
  const std::string bytes = safetensors_bytes({{"a", "F32", {2}, "12345678"}});
  TemporaryDirectory dir;
  const auto opened = [&](const std::string& name) {
    return SafetensorsFile(dir.write(name, bytes));
  };
  const auto fails = [](const SafetensorsFile& file, const char* part) {
    expect_user_error([&] { file.check_unchanged(); }, {file.path().string() + ": was ", part});
  };
  const SafetensorsFile same = opened("same"), gone = opened("gone"), replaced = opened("replaced"),
                        cut = opened("cut"), longer = opened("longer"), written = opened("written");
  std::filesystem::remove(gone.path());
  std::filesystem::rename(dir.write("other", bytes + "x"), replaced.path());
  std::filesystem::resize_file(cut.path(), 9);
  std::filesystem::resize_file(longer.path(), bytes.size() + 1);
  std::filesystem::last_write_time(written.path(), std::filesystem::file_time_type::clock::now());
  for (const SafetensorsFile* file : {&same, &gone, &replaced}) {
    file->check_unchanged();
    EXPECT_EQ(std::memcmp(file->tensors().at("a").data, "12345678", 8), 0);
  }
  fails(cut, "cut short");
  fails(longer, "written to");
  fails(written, "written to");
  SafetensorsFile moved = opened("moved");
  SafetensorsFile to = std::move(moved);
  std::filesystem::resize_file(to.path(), 9);
  fails(to, "cut short");
}

}  // namespace
}  // namespace stretto::safetensors_test
