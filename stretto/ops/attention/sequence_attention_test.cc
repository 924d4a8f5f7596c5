// Windows over ranks, of more lengths than the catalog has: within a tile, within a chunk, across
// several ranks, longer than the sequence. If these fail, tokens see keys that have left their
// window, or wait for keys that nobody sends.
#include "stretto/ops/attention/sequence_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/compiler.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/passes/pipeline.h"
#include "stretto/testing/cases/sequence_cases.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

TEST(SequenceAttention, AWindowIsThatOfTheReference) {
  for (int world : {1, 2, 3, 5}) {
    for (std::int64_t window : {1, 2, 5, 9, 40}) {
      SequenceAttentionDesc d{.m = 33, .num_heads = 4, .num_kv_heads = 2, .head_dim = 4};
      d.window = window;
      d.world_size = world;
      for (const char* name : {"sequence_attention", "ring_attention", "token_ring"}) {
        SCOPED_TRACE(testing::Message() << name << " P=" << world << " window=" << window);
        OpCase c = sequence_case(name, d, {.world_size = world}, test_seed());
        EXPECT_EQ(run_case(std::move(c), {.launches = 2}), "");
      }
    }
  }
}

// Of every number of rows, odd ones and ranks without any among them.
TEST(SequenceAttention, ContiguousShardsAreThoseOfTheReference) {
  for (int world : {1, 2, 3, 4, 5}) {
    for (std::int64_t window : {-1, 0, 1, 6, 40}) {  // -1: all see all
      SequenceAttentionDesc d{.m = 31, .num_heads = 4, .num_kv_heads = 2, .head_dim = 4};
      d.causal = window >= 0;
      d.window = std::max<std::int64_t>(window, 0);
      d.lse = d.contiguous = true;
      d.world_size = world;
      for (const char* name : {"sequence_attention", "ring_attention", "token_ring"}) {
        SCOPED_TRACE(testing::Message() << name << " P=" << world << " window=" << window);
        std::vector<OpCase> cases;
        for (std::int64_t rows : {31, 0, 1, 2, 17}) {
          cases.push_back(sequence_case(name, d, {.world_size = world, .rows = rows}, test_seed()));
        }
        EXPECT_EQ(run_cases(cases, {.waiver = {}}), "");
      }
    }
  }
}

// With a slot for each part the ring goes through all in one pass, with fewer step by step. Three
// ranks are the fewest that pass a part on, four that write a slot again.
TEST(SequenceAttention, RingsOfAnyNumberOfSlotsAreThoseOfTheReference) {
  const std::pair<int, int> kRankSlots[] = {{2, 1}, {2, 2}, {3, 2}, {3, 7}, {4, 2},
                                            {4, 3}, {5, 2}, {5, 3}, {5, 4}};
  for (auto [world, slots] : kRankSlots) {
    for (std::int64_t window : {0, 1, 7}) {
      SequenceAttentionDesc d{.m = 29, .num_heads = 4, .num_kv_heads = 2, .head_dim = 4};
      d.window = window;
      d.lse = true;
      d.contiguous = slots % 2 == 0;
      d.world_size = world;
      for (Target target : {Target::kCpu, Target::kCuda}) {
        SCOPED_TRACE(testing::Message() << "P=" << world << " slots=" << slots << " window="
                                        << window << (target == Target::kCpu ? " cpu" : " cuda"));
        std::vector<OpCase> cases;
        for (std::int64_t rows : {29, 0, 1, 14, 28}) {
          OpShape shape{.world_size = world, .target = target, .rows = rows};
          cases.push_back(ring_case(d, slots, shape, test_seed()));
        }
        EXPECT_EQ(run_cases(cases, {.waiver = {}}), "");
      }
    }
  }
}

// Products of a program's text, of which a loop has some.
std::int64_t num_products(const Program& tile_program) {
  const Program program = run_pipeline(tile_program);
  std::int64_t count = 0;
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) {
      for_each_op(agent.body, [&](const Op& op) {
        count += op.code == OpCode::kDot || op.code == OpCode::kDotAsync ? 1 : 0;
      });
    }
  }
  return count;
}

// A loop with products is what a GPU's compiler takes most of its time for, so that keys from here
// and from other ranks go through one.
TEST(SequenceAttention, KeysOfAllRanksGoThroughOneLoop) {
  for (std::int64_t window : {0, 100}) {
    SequenceAttentionDesc d{.dtype = DType::kBF16, .m = 4096, .num_heads = 4, .num_kv_heads = 2};
    d.head_dim = 128;
    d.window = window;
    for (int world : {2, 3, 8}) {
      SCOPED_TRACE(testing::Message() << "P=" << world << " window=" << window);
      d.world_size = world;
      SequenceAttentionDesc alone = d;
      alone.world_size = 1;
      const SequenceAttentionConfig gathered = default_config(d, Target::kCuda);
      EXPECT_EQ(num_products(sequence_attention(d, gathered)),
                num_products(sequence_attention(alone, gathered)));
      const SequenceAttentionConfig ring = default_ring_config(d, Target::kCuda);
      EXPECT_EQ(num_products(ring_attention(d, ring)), num_products(ring_attention(alone, ring)));
    }
  }
}

TEST(SequenceAttention, RefusesSlotsThatWouldDoNothingOrStopTheRing) {
  SequenceAttentionDesc d{.m = 16, .head_dim = 4, .world_size = 3};
  expect_user_error([&] { ring_attention(d, {.num_slots = 1}); }, {"num_slots is 1", "at least 2"});
  expect_user_error([&] { ring_attention(d, {.num_slots = 0}); }, {"num_slots is 0", "at least 1"});
  for (auto program : {sequence_attention, token_ring}) {
    expect_user_error([&] { program(d, {.num_slots = 3}); },
                      {"m=16", "num_slots is 3, can only be 2: of ring_attention alone"});
  }
}

// Rows of more lanes than a warp has: their sums are copied in several warps.
TEST(SequenceAttention, RingsOfWideHeadsAreProved) {
  for (auto [dtype, dim] : {std::pair{DType::kF32, 129}, std::pair{DType::kF32, 256},
                            std::pair{DType::kBF16, 257}, std::pair{DType::kBF16, 320}}) {
    SequenceAttentionDesc d{.dtype = dtype, .m = 64, .head_dim = dim, .world_size = 4};
    OpCase c = sequence_case("ring_attention", d, {.world_size = 4, .dtype = dtype}, test_seed());
    EXPECT_NO_THROW(prove(lower(c.program))) << dim;
  }
}

TEST(SequenceAttention, RefusesWindowsThatMakeNoSense) {
  SequenceAttentionDesc d{.m = 4, .causal = false, .window = 2};
  expect_user_error([&] { sequence_attention(d, {}); }, {"window is 2", "not causal"});
  d = {.m = 4, .window = -1};
  expect_user_error([&] { ring_attention(d, {}); }, {"window is -1"});
  expect_user_error([&] { token_ring(d, {}); }, {"window is -1"});
}

TEST(FlashDecode, AWindowIsThatOfTheReference) {
  for (int world : {1, 2, 3, 5}) {
    for (std::int64_t window : {1, 3, 8, 21, 60}) {
      SCOPED_TRACE(testing::Message() << "P=" << world << " window=" << window);
      FlashDecodeDesc d{.m = 3, .max_tokens = 43, .window = window, .block = 4};
      d.num_heads = 4, d.num_kv_heads = 2, d.head_dim = 4, d.world_size = world;
      OpCase c = flash_decode_case(d, {.world_size = world}, test_seed());
      EXPECT_EQ(run_case(std::move(c), {.launches = 2}), "");
    }
  }
}

// GPUs have 128 rows of large heads in a tile; 40 tokens of four heads each are more.
TEST(FlashDecode, RowsOfSeveralTilesAreThoseOfTheReference) {
  for (int world : {1, 2}) {
    FlashDecodeDesc d{.dtype = DType::kBF16, .m = 40, .max_tokens = 200};
    d.num_heads = 8, d.num_kv_heads = 2, d.head_dim = 96, d.world_size = world;
    OpShape shape{.world_size = world, .dtype = DType::kBF16, .target = Target::kCuda};
    for (std::int64_t rows : {40, 32, 0}) {
      shape.rows = rows;
      OpCase c = flash_decode_case(d, shape, test_seed());
      EXPECT_EQ(run_case(std::move(c), {.launches = 2}), "") << "P=" << world << " m=" << rows;
    }
  }
}

// Else what other caches hold of the same context is weighed wrongly beside this.
TEST(FlashDecode, LogarithmsOfSumsAreThoseOfTheReference) {
  FlashDecodeDesc d{.block = 4, .num_heads = 6, .num_kv_heads = 2, .head_dim = 4, .lse = true};
  for (d.world_size = 1; d.world_size <= 8; ++d.world_size) {
    for (std::int64_t tokens : {1, 4, 30, 43}) {
      d.max_tokens = tokens;
      d.m = std::min<std::int64_t>(tokens, 3);
      for (std::int64_t window : {0, 1, 9}) {
        d.window = window;
        d.scale = window == 1 ? std::optional(-0.7) : std::nullopt;
        for (std::int64_t rows : {d.m, d.m / 2}) {
          OpCase c = flash_decode_case(d, {.rows = rows}, test_seed());
          EXPECT_EQ(run_case(c, {.launches = 3}), "") << c.config << " P=" << d.world_size;
        }
      }
    }
  }
}

TEST(FlashDecode, RefusesAWindowThatMakesNoSense) {
  FlashDecodeDesc d{.window = -1};
  expect_user_error([&] { flash_decode(d, {}); }, {"window is -1"});
}

}  // namespace
}  // namespace stretto
