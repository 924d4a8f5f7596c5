// The harness finds operators that go wrong, above all those that are right in their first launch,
// and refuses cases that would not see it. If these fail, the catalog's tests say less than their
// names.
#include "stretto/testing/harness/run_case.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/testing/harness/case_data.h"

namespace stretto {
namespace {

constexpr std::int64_t kRows = 6, kCols = 8;

struct Tensors {
  TensorRef in, out, cache;  // [m, kCols], local
};

// out = 2 * in, and the cache's row `at` = in's first one, as `body` computes it.
Program program_of(const std::function<void(ProgramBuilder&, const Tensors&)>& body) {
  ProgramBuilder p("twice", 1);
  Index m = p.extent("m", kRows);
  Tensors t{.in = p.input("in", DType::kF32, {m, kCols}),
            .out = p.output("out", DType::kF32, {m, kCols}),
            .cache = p.state("cache", DType::kF32, {kRows, kCols})};
  body(p, t);
  return p.finish();
}

OpCase case_of(const Program& program, std::int64_t m, std::uint64_t seed) {
  OpCase c{.program = program, .extents = {m}, .config = "twice"};
  c.inputs = no_values(program);
  c.expected = no_values(program);
  auto idx = [&](const char* name) { return static_cast<std::size_t>(program.find_tensor(name)); };
  Values& in = c.inputs[0][idx("in")] = random_values(kRows * kCols, DType::kF32, seed);
  Values& cache = c.inputs[0][idx("cache")] = random_values(kRows * kCols, DType::kF32, seed + 1);
  c.expected[0][idx("cache")] = cache;
  Values& out = c.expected[0][idx("out")];
  out.assign(in.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < static_cast<std::size_t>(m * kCols); ++i) out[i] = 2 * in[i];
  std::copy_n(in.begin(), kCols, c.expected[0][idx("cache")].begin() + kCols);
  return c;
}

Slice row(const TensorRef& tensor, const Index& at) { return tensor.tile({at, 0}, 1, kCols); }
Slice all(const TensorRef& tensor) { return tensor.tile({0, 0}, kRows, kCols); }

// What a launch leaves in a symmetric buffer is there in the next: it has been launched before.
struct Launched {
  explicit Launched(ProgramBuilder& p)
      : p_(p), flag_(p.buffer("launched", DType::kI32, {1, 1}, {.space = Space::kSymmetric})) {}
  // 0.0 in the first launch, 1.0 in every later one: the executor fills it with -1.
  Value before() {
    Value was = p_.load(flag_.tile({0, 0}, 1, 1));
    p_.worker_fence();
    p_.store(flag_.tile({0, 0}, 1, 1), p_.splat(DType::kI32, 0));
    return cast(was, DType::kF32) + 1.0;
  }

 private:
  ProgramBuilder& p_;
  TensorRef flag_;
};

void role(ProgramBuilder& p, const std::function<void()>& body) {
  p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) { body(); });
}

Program right_program() {
  return program_of([](ProgramBuilder& p, const Tensors& t) {
    role(p, [&] {
      Value in = p.load(all(t.in));
      p.store(all(t.out), in + in);
      p.store(row(t.cache, 1), p.load(row(t.in, 0)));
    });
  });
}

// Two launches of two cases with other inputs, and of one with the same.
std::string found_in(const Program& program, int launches = 2) {
  std::uint64_t seed = test_seed();
  std::vector<OpCase> cases{case_of(program, kRows, seed), case_of(program, kRows, seed + 2)};
  return run_cases(cases, {.launches = launches, .seed = seed});
}
std::string found_in_one(const Program& program, int launches = 2) {
  std::uint64_t seed = test_seed();
  return run_case(case_of(program, kRows, seed), {.launches = launches, .seed = seed});
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(RunCase, ARightProgramPasses) {
  Program program = right_program();
  EXPECT_EQ(found_in(program), "");
  EXPECT_EQ(found_in_one(program), "");
  std::uint64_t seed = test_seed();
  std::vector<OpCase> cases;
  for (std::int64_t m : {6, 1, 3}) cases.push_back(case_of(program, m, seed + cases.size()));
  EXPECT_EQ(run_cases(cases, {.launches = 3, .seed = seed, .waiver = {}}), "");
}

// State is compared after every launch, not after the first one alone.
TEST(RunCase, StateThatGoesWrongInTheSecondLaunchIsFound) {
  Program program = program_of([](ProgramBuilder& p, const Tensors& t) {
    Launched launched(p);
    role(p, [&] {
      Value in = p.load(all(t.in));
      p.store(all(t.out), in + in);
      p.store(row(t.cache, 1), p.load(row(t.in, 0)) + launched.before());
    });
  });
  EXPECT_EQ(found_in_one(program, 1), "");
  EXPECT_TRUE(has(found_in_one(program), "launch 1: rank 0: cache[8] is "));
  EXPECT_TRUE(has(found_in(program), "launch 1: rank 0: cache[8] is "));
}

TEST(RunCase, AWrongSlotOfStateFromTheSecondLaunchOnIsFound) {
  Program program = program_of([](ProgramBuilder& p, const Tensors& t) {
    TensorRef flag = p.buffer("launched", DType::kI32, {1, 1}, {.space = Space::kSymmetric});
    role(p, [&] {
      Value in = p.load(all(t.in));
      p.store(all(t.out), in + in);
      Value was = p.load(flag.tile({0, 0}, 1, 1));  // -1, then 1
      p.worker_fence();
      p.store(flag.tile({0, 0}, 1, 1), p.splat(DType::kI32, 1));
      p.store_rows(row(t.cache, 0), was + p.splat(DType::kI32, 2), p.load(row(t.in, 0)));
    });
  });
  EXPECT_EQ(found_in_one(program, 1), "");
  EXPECT_TRUE(has(found_in_one(program), "launch 1: rank 0: cache["));
}

// An operator with state whose output is wrong later.
TEST(RunCase, AnOutputThatGoesWrongInTheSecondLaunchIsFound) {
  Program program = program_of([](ProgramBuilder& p, const Tensors& t) {
    Launched launched(p);
    role(p, [&] {
      Value in = p.load(all(t.in));
      p.store(all(t.out), in + in + launched.before());
      p.store(row(t.cache, 1), p.load(row(t.in, 0)));
    });
  });
  EXPECT_EQ(found_in_one(program, 1), "");
  EXPECT_TRUE(has(found_in_one(program), "launch 1: rank 0: out[0] is "));
}

// What the launch before left in a buffer, instead of this one's: the same inputs would hide it.
TEST(RunCase, AStaleBufferIsFoundByOtherInputs) {
  Program program = program_of([](ProgramBuilder& p, const Tensors& t) {
    TensorRef kept = p.buffer("kept", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric});
    Launched launched(p);
    role(p, [&] {
      Value in = p.load(all(t.in)), stale = p.load(all(kept));
      Value taken = where(launched.before() > 0.5, stale, in);
      p.worker_fence();
      p.store(all(kept), in);
      p.store(all(t.out), taken + taken);
      p.store(row(t.cache, 1), p.load(row(t.in, 0)));
    });
  });
  EXPECT_EQ(found_in_one(program, 5), "");
  EXPECT_TRUE(has(found_in(program), "launch 1: rank 0: out[0] is "));
}

TEST(RunCase, ALocalBufferHoldsNothingOfTheLaunchBefore) {
  Program program = program_of([](ProgramBuilder& p, const Tensors& t) {
    TensorRef kept = p.buffer("kept", DType::kF32, {1, kCols});
    role(p, [&] {
      Value in = p.load(all(t.in));
      Value sum = p.load(row(kept, 0));  // nobody has written it
      p.worker_fence();
      p.store(row(kept, 0), sum);
      p.store(all(t.out), in + in + sum);
      p.store(row(t.cache, 1), p.load(row(t.in, 0)));
    });
  });
  std::string found = found_in_one(program, 1);
  EXPECT_TRUE(has(found, "launch 0: rank 0: out[0] is ") && has(found, "nan")) << found;
}

// The last row that a launch has may be written, the first that it does not have may not.
TEST(CaseData, AWritePastTheLaunchsRowsOrIntoAnInputIsFound) {
  const OpCase c = case_of(right_program(), 3, test_seed());
  const TensorsAtFirst first = tensors_at_first(c, 0);
  TensorsAtFirst left = first;
  TensorBytes bytes = [&](std::size_t t) { return std::span<const std::byte>(left[t]); };
  auto element = [&](const char* name, std::size_t i) -> std::byte& {
    return left[static_cast<std::size_t>(c.program.find_tensor(name))][i * sizeof(float)];
  };
  element("out", 3 * kCols - 1) = std::byte{0};
  EXPECT_EQ(check_untouched(c, 0, first, bytes), "");
  element("out", 3 * kCols) = std::byte{0};
  EXPECT_EQ(check_untouched(c, 0, first, bytes),
            "a write to out[24], which this launch's shape does not have");
  left = first;
  element("in", 0) ^= std::byte{1};
  EXPECT_EQ(check_untouched(c, 0, first, bytes), "a write into the input 'in'");
}

// A case cannot leave out what it does not know.
TEST(RunCase, ACaseThatComparesNothingOfATensorIsRefused) {
  Program program = right_program();
  const OpCase good = case_of(program, kRows, test_seed());
  auto out = static_cast<std::size_t>(program.find_tensor("out"));
  auto cache = static_cast<std::size_t>(program.find_tensor("cache"));
  OpCase c = good;
  c.expected[0][cache].clear();
  EXPECT_EQ(run_case(c), "twice: 'cache' has no values to compare with on some rank");
  c = good;
  for (double& v : c.expected[0][out]) v = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(run_case(c), "twice: 'out' has no element that is compared");
  c.unchecked = {"out"};
  EXPECT_EQ(run_case(c), "");
  c = good;
  c.unchecked = {"out"};
  EXPECT_EQ(run_case(c), "twice: 'out' is said not to be compared, and has values");
  c = good;
  c.tolerance = 1;
  c.scale = 2;
  EXPECT_EQ(run_case(c), "twice: 'out' would pass if half of it were zero");
}

TEST(RunCase, AnInfinityIsRightAsItselfAlone) {
  ProgramBuilder p("logarithms", 1);
  TensorRef in = p.input("in", DType::kF32, {4, 1}), out = p.output("out", DType::kF32, {4, 1});
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    p.store(out.tile({0, 0}, 4, 1), log(p.load(in.tile({0, 0}, 4, 1))));
  });
  const double inf = std::numeric_limits<double>::infinity();
  OpCase c{.program = p.finish(), .config = "logarithms"};
  c.inputs = {{{1, 0, 0, 1}, {}}};
  c.expected = {{{}, {0, -inf, -inf, 0}}};
  c.tolerance = 1e-3;
  EXPECT_EQ(run_case(c), "");
  for (double wrong : {inf, 0.0, -1e30}) {
    c.expected[0][1][2] = wrong;
    EXPECT_NE(run_case(c).find("out[2] is -inf"), std::string::npos) << wrong;
  }
}

// Rows of state that stay, and what a case says is copied, have to stay to the bit.
TEST(RunCase, WhatIsCopiedOrStaysIsComparedToTheBit) {
  Program program = program_of([](ProgramBuilder& p, const Tensors& t) {
    role(p, [&] {
      Value in = p.load(all(t.in));
      p.store(all(t.out), in + in);
      p.store(row(t.cache, 1), p.load(row(t.in, 0)) * 1.0001);
      p.store(row(t.cache, 2), p.load(row(t.cache, 2)) * 1.0001);
    });
  });
  OpCase c = case_of(program, kRows, test_seed());
  c.tolerance = 0.001;
  EXPECT_TRUE(has(run_case(c), "cache[16] is "));
  c.exact = {"cache"};
  EXPECT_TRUE(has(run_case(c), "cache[8] is "));
}

}  // namespace
}  // namespace stretto
