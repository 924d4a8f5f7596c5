// What callers may hand to attention of several sequences beyond the catalog's random cases:
// lengths of none and one, tables that break their promise, sizes that make no sense. If these
// fail, one bad entry makes a sequence read another's keys.
#include "stretto/ops/attention/packed_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/ops/attention/attention_runs.h"
#include "stretto/ops/attention/attention_shapes.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

Values& tensor_of(std::vector<std::vector<Values>>& all, const OpCase& c, const char* name) {
  return all[0][static_cast<std::size_t>(c.program.find_tensor(name))];
}

TEST(PackedAttention, SequencesOfNoneAndOneTokenGiveTheirOwnValue) {
  constexpr std::size_t kDim = 4, kHeads = 4, kKvHeads = 2;
  OpCase c = make_case(packed_attention_info(), {.m = 4, .n = 5, .k = kDim}, test_seed() / 12 * 12);
  tensor_of(c.inputs, c, "starts") = {0, 1, 1, 2, 3, 4};  // the second one is empty
  const Values& v = tensor_of(c.inputs, c, "v");
  Values& out = tensor_of(c.expected, c, "out");
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::size_t row = i / (kHeads * kDim), head = i / kDim % kHeads;
    out[i] = v[(row * kKvHeads + head / (kHeads / kKvHeads)) * kDim + i % kDim];
  }
  EXPECT_EQ(run_case(c, {.launches = 2}), "");
}

TEST(PackedAttention, ATableThatBreaksItsPromiseEndsTheLaunchWithItsName) {
  auto breaks = [](const OperatorInfo& op, const char* table, std::size_t entry, double value) {
    OpCase c = make_case(op, {.m = 10, .n = 13, .k = 4}, test_seed() / 12 * 12);
    tensor_of(c.inputs, c, table)[entry] = value;
    expect_fault([&] { run_case(c, {.launches = 1}); },
                 {fmt::format("'{}'", table), fmt::format("entry {}", entry)});
  };
  breaks(packed_attention_info(), "starts", 0, 1);
  breaks(packed_attention_info(), "starts", 13, 11);
  breaks(packed_attention_info(), "starts", 3, -1);
  breaks(paged_attention_info(), "pages", 5, 12);
  breaks(paged_attention_info(), "pages", 0, -1);
  breaks(paged_attention_info(), "tokens", 2, 14);
}

// The catalog's cases have room for all rows in one sequence, a user's sizes need not.
TEST(PackedAttention, NoSequenceHasMoreRowsThanItsPagesHold) {
  for (std::uint64_t seed = test_seed() / 12 * 12, i = 0; i < 6; ++i) {
    OpCase c = make_case(paged_attention_info(), {.m = 64, .n = 12, .k = 8}, seed + i);
    const Values& starts = tensor_of(c.inputs, c, "starts");
    for (std::size_t s = 1; s < starts.size(); ++s) {
      EXPECT_GE(starts[s], starts[s - 1]);
      EXPECT_LE(starts[s], starts[s - 1] + 12) << c.config;
    }
    EXPECT_EQ(run_case(c, {.launches = 1}), "") << c.config;
  }
}

// Rows before the first sequence's are as they were; all others as without them.
TEST(PackedAttention, RowsOfOthersAreLeftAlone) {
  const OpShape shape{.m = 10, .n = 13, .k = 4};
  OpCase whole;
  std::uint64_t seed = test_seed() / 12 * 12;
  do {  // until the first sequence has rows
    whole = make_case(paged_attention_info(), shape, seed);
    seed += 12;
  } while (tensor_of(whole.inputs, whole, "starts")[1] == 0);
  PackedAttentionDesc d = packed_desc(shape, PackedKeys::kPaged);
  --d.sequences;
  d.behind_others = true;
  OpCase c = whole;
  c.program = paged_attention(d, {.tile_rows = 2, .tile_kv = 2, .blocks = 2, .num_workers = 2});
  c.inputs = no_values(c.program);
  c.expected = no_values(c.program);
  for (const char* name : {"starts", "q", "pages", "tokens", "k_pages", "v_pages"}) {
    tensor_of(c.inputs, c, name) = tensor_of(whole.inputs, whole, name);
  }
  Values &pages = tensor_of(c.inputs, c, "pages"), &tokens = tensor_of(c.inputs, c, "tokens");
  pages.erase(pages.begin(), pages.begin() + d.pages_per_sequence());
  tokens.erase(tokens.begin());
  const Values& starts = tensor_of(c.inputs, c, "starts");
  auto others = static_cast<std::ptrdiff_t>(starts[1]) * d.num_heads * d.head_dim;
  const Values& out = tensor_of(whole.expected, whole, "out");
  Values before(out.size(), 7.0), after = out;
  std::copy(before.begin(), before.begin() + others, after.begin());
  tensor_of(c.inputs, c, "out") = before;
  tensor_of(c.expected, c, "out") = after;
  EXPECT_EQ(run_case(c, {.launches = 2, .waiver = ""}), "");
}

TEST(PackedAttention, RowsOfOthersComeWithoutLogarithms) {
  PackedAttentionDesc d{.m = 4, .page = 4, .num_pages = 2, .max_tokens = 8, .lse = true};
  d.behind_others = true;
  expect_user_error([&] { paged_attention(d, {.tile_kv = 4}); }, {"lse is 1"});
  d.page = 0;
  expect_user_error([&] { packed_attention(d, {}); }, {"behind_others is 1"});
}

// On GPUs by the same tiles of keys, in the same runs, by one worker or by several.
TEST(PagedDecode, TheOrderOfPromptsIsThatOfTheirConfig) {
  PagedDecodeDesc d{.dtype = DType::kBF16, .page = 64, .num_pages = 4, .max_tokens = 4096};
  d.num_heads = 8, d.num_kv_heads = 2, d.head_dim = 64;
  for (std::int64_t m : {1, 3, 100}) {
    d.m = m;
    for (bool fp8 : {false, true}) {
      d.fp8 = fp8;
      std::optional<PagedDecodeConfig> c = prompt_order_config(d, Target::kCuda);
      ASSERT_TRUE(c);
      PackedAttentionDesc prompts{.dtype = d.dtype, .page = d.page, .head_dim = d.head_dim};
      prompts.fp8 = fp8;
      const PackedAttentionConfig of_prompts = default_config(prompts, Target::kCuda);
      EXPECT_EQ(c->tile_kv, of_prompts.tile_kv);
      EXPECT_EQ(c->first_run, of_prompts.first_run);
      EXPECT_EQ(c->first_run > 0, !fp8);
      EXPECT_EQ(c->splits > 1, m < 100 && !fp8);
      EXPECT_TRUE(c->sums_by_product);
      EXPECT_EQ(prompt_order_config(d, Target::kCuda, 64)->first_run, fp8 ? 0 : 64);
    }
  }
  d.dtype = DType::kF32;
  EXPECT_FALSE(prompt_order_config(d, Target::kCuda));
}

// Sixteen runs of one length, then eight each of lengths that double.
TEST(AttentionRuns, BeginWhereTheirLengthsSay) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 40; ++trial) {
    const auto first = static_cast<std::int64_t>(1 + random() % 5);
    const auto steps = static_cast<std::int64_t>(1 + random() % 3000);
    const AttentionRuns runs(first, steps);
    std::vector<std::int64_t> starts;
    for (std::int64_t at = 0, length = first; at < steps; at += length) {
      if (starts.size() >= 16 && starts.size() % 8 == 0) length *= 2;
      starts.push_back(at);
    }
    ASSERT_EQ(runs.count(), std::ssize(starts)) << first << " " << steps;
    auto value = [](const Expr& e) { return eval(e, {}); };
    for (std::int64_t i = 0; i < std::ssize(starts); ++i) {
      ASSERT_EQ(runs.start(i), starts[static_cast<std::size_t>(i)]) << first << " " << steps;
      ASSERT_EQ(value(runs.start(Expr(i))), runs.start(i)) << first << " " << steps;
    }
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto at = std::lower_bound(starts.begin(), starts.end(), step);
      ASSERT_EQ(value(runs.begins(Expr(step))) != 0, at != starts.end() && *at == step) << step;
      ASSERT_EQ(value(runs.count(Expr(step))), at - starts.begin()) << step;
    }
  }
}

// Every way to deal runs out adds them all up: against the reference, lengths drawn by lot.
TEST(PagedDecode, RunsAreAddedUpHoweverManyAreReadAtATime) {
  for (std::int64_t n : {150, 149}) {
    const OpShape shape{.m = 2, .n = n, .k = 4};
    const std::uint64_t seed = test_seed();
    SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
    OpCase c = make_case(paged_decode_info(), shape, seed);
    for (std::int64_t splits : {1, 2, 5, 50}) {
      OpCase of = c;
      of.program = paged_decode(paged_decode_desc(shape, false),
                                {.tile_kv = 2, .first_run = 4, .splits = splits, .num_workers = 3});
      // Their buffers differ; tensors that are given do not.
      of.inputs = no_values(of.program);
      of.expected = no_values(of.program);
      for (const char* name : {"q", "pages", "tokens", "k_pages", "v_pages"}) {
        tensor_of(of.inputs, of, name) = tensor_of(c.inputs, c, name);
      }
      tensor_of(of.expected, of, "out") = tensor_of(c.expected, c, "out");
      EXPECT_EQ(run_case(of, {.launches = 2, .waiver = ""}), "") << splits << " splits";
    }
  }
}

TEST(PagedDecode, SequencesOfOneTokenGiveItsValueAndThoseOfNoneNobodyElses) {
  constexpr std::size_t kDim = 4, kHeads = 6, kKvHeads = 2, kPage = 4, kColumns = 4;
  OpCase c = make_case(paged_decode_info(), {.m = 5, .n = 14, .k = kDim}, test_seed() / 12 * 12);
  Values &tokens = tensor_of(c.inputs, c, "tokens"), &pages = tensor_of(c.inputs, c, "pages");
  tokens = {1, 0, 1, 0, 1};
  for (const char* name : {"out", "lse"}) {
    for (double& value : tensor_of(c.expected, c, name)) value = std::nan("");
  }
  c.unchecked = {"lse"};
  Values& out = tensor_of(c.expected, c, "out");
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::size_t sequence = i / (kHeads * kDim), kv = i / kDim % kHeads / (kHeads / kKvHeads);
    if (tokens[sequence] == 0) continue;
    auto entry = static_cast<std::size_t>(pages[sequence * kColumns]) * kKvHeads + kv;
    out[i] = tensor_of(c.inputs, c, "v_pages")[entry * kPage * kDim + i % kDim];
  }
  EXPECT_EQ(run_case(c, {.launches = 2}), "");
}

TEST(PagedDecode, ATableThatBreaksItsPromiseEndsTheLaunchWithItsName) {
  auto breaks = [](const char* table, std::size_t entry, double value) {
    OpCase c = make_case(paged_decode_info(), {.m = 3, .n = 14, .k = 4}, test_seed() / 12 * 12);
    Values& tokens = tensor_of(c.inputs, c, "tokens");
    std::fill(tokens.begin(), tokens.end(), 14.0);  // all pages are read
    tensor_of(c.inputs, c, table)[entry] = value;
    expect_fault([&] { run_case(c, {.launches = 1}); },
                 {fmt::format("'{}'", table), fmt::format("entry {}", entry)});
  };
  breaks("pages", 5, 12);
  breaks("pages", 0, -1);
  breaks("tokens", 2, 15);
  breaks("tokens", 1, -1);
}

TEST(PagedDecode, RefusesSizesThatMakeNoSense) {
  PagedDecodeDesc d{.page = 4, .num_pages = 0};
  expect_user_error([&] { paged_decode(d, {.tile_kv = 4}); }, {"num_pages is 0"});
  d.num_pages = 1;
  expect_user_error([&] { paged_decode(d, {.tile_kv = 3}); }, {"page is 4", "tile_kv"});
  expect_user_error([&] { paged_decode(d, {.tile_kv = 4, .splits = 0}); }, {"splits is 0"});
  expect_user_error([&] { paged_decode(d, {.tile_kv = 4, .first_run = 6}); }, {"first_run is 6"});
  d.num_heads = 4;
  expect_user_error([&] { paged_decode(d, {.tile_kv = 4, .tile_rows = 3}); }, {"tile_rows is 3"});
  d.num_heads = 1;
  d.window = -1;
  expect_user_error([&] { paged_decode(d, {.tile_kv = 4}); }, {"window is -1"});
  d.window = 0;
  d.num_heads = 3, d.num_kv_heads = 2;
  expect_user_error([&] { paged_decode(d, {.tile_kv = 4}); }, {"num_heads is 3"});
}

// Longer than a block of keys, so that some are left out and the first of a run begins within one.
TEST(PackedAttention, AWindowOfSeveralBlocksIsThatOfTheReference) {
  for (std::int64_t window : {33, 36, 39}) {
    SCOPED_TRACE(window);
    OpShape shape{.m = 3 * window, .n = 128, .k = 16};
    EXPECT_EQ(run_case(make_case(paged_attention_info(), shape, test_seed()), {.launches = 2}), "");
    shape.n = 3;
    EXPECT_EQ(run_case(make_case(packed_attention_info(), shape, test_seed()), {.launches = 2}),
              "");
    OpShape step{.m = window / 3 * 5, .n = 128, .k = 16};
    EXPECT_EQ(run_case(make_case(paged_decode_info(), step, test_seed()), {.launches = 2}), "");
  }
}

TEST(PackedAttention, RefusesSizesThatMakeNoSense) {
  PackedAttentionDesc d{.m = 4, .sequences = 0};
  expect_user_error([&] { packed_attention(d, {}); }, {"sequences is 0"});
  d = {.m = 4, .causal = false, .window = 2};
  expect_user_error([&] { packed_attention(d, {}); }, {"window is 2"});
  d = {.m = 4, .scale = std::nan("")};
  expect_user_error([&] { packed_attention(d, {}); }, {"scale is nan"});
  d = {.m = 4, .page = 4};
  expect_user_error([&] { packed_attention(d, {.tile_kv = 4}); }, {"page is 4"});
  d.max_tokens = 8;
  expect_user_error([&] { paged_attention(d, {.tile_kv = 3}); }, {"page is 4", "tile_kv"});
  expect_user_error([&] { paged_attention(d, {.tile_kv = 4}); }, {"num_pages is 0"});
  d.num_pages = 2;
  expect_user_error([&] { paged_attention(d, {.tile_kv = 4, .first_run = 2}); },
                    {"first_run is 2"});
  d.page = 0;
  expect_user_error([&] { packed_attention(d, {.tile_kv = 4, .first_run = 4}); },
                    {"first_run is 4"});
}

}  // namespace
}  // namespace stretto
