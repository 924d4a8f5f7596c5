// What blocks of a cluster, and agents of schedules by hand, cannot do. A user who loses this has
// sums of half of the rows, tiles of which half is never written, or a kernel that waits for ever.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/ir/parser.h"
#include "stretto/lang/program_builder.h"

namespace stretto::role_limits_test {
namespace {

std::string refusal(const std::function<void()>& generates) {
  try {
    generates();
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

// Of a role in clusters of two that loads a value of `rows` rows and stores what `of` makes of it.
std::string clustered(std::int64_t rows, std::int64_t out_rows, std::int64_t out_cols,
                      const std::function<Value(ProgramBuilder&, const Value&)>& of) {
  ProgramBuilder p("clustered", 1);
  auto a = p.input("a", DType::kF32, {rows, 64});
  auto c = p.output("c", DType::kF32, {out_rows, out_cols});
  p.role("work", Resource::sms(1).clustered(2), p.range(1), [&](const Tile&) {
    Value v = p.load(a.tile({0, 0}, rows, 64));
    p.store(c.tile({0, 0}, out_rows, out_cols), of(p, v));
  });
  Program program = p.finish();
  return refusal([&] { generate(program); });
}

void expect_words(const std::string& why, const std::string& words) {
  EXPECT_NE(why.find(words), std::string::npos) << why;
  EXPECT_NE(why.find("role_limits_test.cc:"), std::string::npos) << why;
}

TEST(RoleLimits, WhatCrossesRowsThatAClusterSharesOut) {
  auto sum = [](ProgramBuilder&, const Value& v) { return col_sum(v); };
  auto most = [](ProgramBuilder&, const Value& v) { return col_max(v); };
  auto turned = [](ProgramBuilder&, const Value& v) { return v.T(); };
  auto same = [](ProgramBuilder&, const Value& v) { return v * 2.0; };
  auto product = [](ProgramBuilder& p, const Value& v) {
    return dot(p.zeros(DType::kF32, 64, 64), v, v);
  };
  expect_words(clustered(128, 1, 64, sum), "a reduction over rows");
  expect_words(clustered(128, 1, 64, most), "a reduction over rows");
  expect_words(clustered(128, 64, 128, turned), "a transposition of rows");
  expect_words(clustered(64, 64, 64, product), "right factor");
  expect_words(clustered(101, 101, 64, same), "101 rows are no multiple");
  EXPECT_EQ(clustered(128, 128, 64, same), "");
  EXPECT_EQ(clustered(1, 1, 64, sum), "") << "all blocks have the one row";
}

TEST(RoleLimits, RowsThatAClusterCannotShareOutAreNotCopied) {
  ProgramBuilder p("copies", 1);
  auto a = p.input("a", DType::kF32, {101, 64});
  auto c = p.output("c", DType::kF32, {101, 64});
  p.role("copy", Resource::sms(1).clustered(2), p.range(1), [&](const Tile&) {
    p.copy(c.tile({0, 0}, 101, 64), a.tile({0, 0}, 101, 64));
  });
  Program program = p.finish();
  expect_words(refusal([&] { generate(program); }), "101 rows are no multiple");
}

TEST(RoleLimits, BlocksHaveTheSharedMemoryOfTheTarget) {
  ProgramBuilder p("product", 1);
  auto a = p.input("a", DType::kBF16, {64, 64}), b = p.input("b", DType::kBF16, {64, 64});
  auto c = p.output("c", DType::kF32, {64, 64});
  p.role("gemm", Resource::sms(1).pipelined(3), p.range(1), [&](const Tile&) {
    Value sum = p.zeros(DType::kF32, 64, 64);
    p.loop(1, [&](const Index&) {
      sum = dot(sum, p.load(a.tile({0, 0}, 64, 64)), p.load(b.tile({0, 0}, 64, 64)).T());
    });
    p.store(c.tile({0, 0}, 64, 64), sum);
  });
  Program program = run_pipeline(p.finish());
  const std::size_t taken = generate_kernel(program).launch.shared_bytes;
  EXPECT_LE(taken, GpuTarget{}.shared_bytes);
  GpuTarget small{.shared_bytes = taken};
  EXPECT_EQ(generate_kernel(program, {.target = small}).launch.shared_bytes, taken);
  small.shared_bytes = 1024;
  expect_words(refusal([&] { generate_kernel(program, {.target = small}); }), "a block has 1024");
  // What records takes more than the role alone.
  small.shared_bytes = taken;
  KernelOptions records{.target = small, .record = true};
  EXPECT_NE(refusal([&] { generate_kernel(program, records); }).find("where it records"),
            std::string::npos);
}

TEST(RoleLimits, PutsByWhoIsNoProducer) {
  Program program = parse(R"(program "chain" world 1 level schedule {
  rank %rank
  tile %t
  input @a : bf16[512, 64]
  output @o : bf16[512, 64]
  role both sms 1 tiles %t < 4 {
    pipe one : bf16[128, 64] slots 2 swizzle b128 producer p1 consumer p2
    agent p1 consumer threads 128 {
      pipe_put one = @a[%t * 128, 0] tile [128, 64]
    }
    agent p2 consumer threads 128 {
      values $0: bf16[128, 64]
      $0 = pipe_get one
      store $0 to @o[%t * 128, 0] tile [128, 64]
      pipe_release one
    }
  }
})",
                          "chain.ir", MissingLocs::kFill);
  std::string why = refusal([&] { generate_kernel(program); });
  EXPECT_NE(why.find("chain.ir:9: role 'both' on the GPU: a pipe_put"), std::string::npos) << why;
}

}  // namespace
}  // namespace stretto::role_limits_test
