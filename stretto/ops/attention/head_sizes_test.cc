// Every form of attention at the head sizes that models have, beside its fp64 reference: the
// catalog's heads have up to 32 elements. If these fail, a model whose heads are larger than a
// tile's columns, or no power of two, reads other text than it wrote.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "stretto/base/test_seed.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/decode_attention.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/testing/cases/cases.h"
#include "stretto/testing/cases/sequence_cases.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

struct HeadSize {
  std::int64_t dim;
  DType dtype;
  Target target;  // whose config CPU ranks run
};

class HeadSizes : public testing::TestWithParam<HeadSize> {
 protected:
  // A launch of all m rows, and of fewer.
  void expect_right(const OperatorInfo& op, int world_size, std::int64_t m, std::int64_t n) const {
    auto [dim, dtype, target] = GetParam();
    OpShape shape{.world_size = world_size, .m = m, .n = n, .k = dim, .dtype = dtype};
    shape.target = target;
    for (std::int64_t rows : {m, m - m / 3}) {
      shape.rows = rows;
      OpCase c = make_case(op, shape, seed_);
      EXPECT_EQ(run_case(c, {.launches = 1, .seed = seed_}), "") << c.config;
    }
  }
  OpShape shape_of(int world_size) const {
    return {.world_size = world_size, .dtype = GetParam().dtype, .target = GetParam().target};
  }
  void expect_right(const OpCase& c) const {
    EXPECT_EQ(run_case(c, {.launches = 1, .seed = seed_}), "") << c.config;
  }

  std::uint64_t seed_ = test_seed() % 100'000;
};

// An even cache is seen from its beginning, an odd one through a window; ranks share six heads.
TEST_P(HeadSizes, AttentionOverACache) {
  for (int world_size : {1, 2}) {
    for (std::int64_t cache : {26, 27}) {
      expect_right(rope_info(), world_size, 5, cache);
      expect_right(attention_info(), world_size, 5, cache);
      expect_right(attention_info(), world_size, 6, cache);
      expect_right(decode_attention_info(), world_size, 1, cache);
    }
  }
}

// Causal, where all see all, and with a window.
TEST_P(HeadSizes, PackedAndPagedSequences) {
  for (std::int64_t m : {11, 10, 9}) {
    expect_right(packed_attention_info(), 1, m, 3);
    expect_right(paged_attention_info(), 1, m, 14);
  }
}

TEST_P(HeadSizes, PagedDecoding) {
  for (std::int64_t m : {3, 4, 5}) expect_right(paged_decode_info(), 1, m, 14);  // 5: a window
}

TEST_P(HeadSizes, SequencesOverRanks) {
  for (const char* name : {"sequence_attention", "ring_attention", "token_ring"}) {
    for (int world_size : {1, 2, 3}) {
      SequenceAttentionDesc d{.dtype = GetParam().dtype, .m = 13, .num_heads = 4};
      d.num_kv_heads = 2, d.head_dim = GetParam().dim;
      d.lse = true;
      d.world_size = world_size;
      for (int mask = 0; mask < 3; ++mask) {
        d.causal = mask > 0;
        d.window = mask == 2 ? 5 : 0;
        SCOPED_TRACE(fmt::format("{} P={}", name, world_size));
        expect_right(sequence_case(name, d, shape_of(world_size), seed_));
      }
    }
  }
}

TEST_P(HeadSizes, DecodingOverRanks) {
  for (int world_size : {1, 2, 3}) {
    for (std::int64_t window : {0, 9}) {
      FlashDecodeDesc d{.dtype = GetParam().dtype, .m = 3, .max_tokens = 29, .window = window};
      d.block = 4;
      d.num_heads = 4, d.num_kv_heads = 2, d.head_dim = GetParam().dim;
      d.lse = true;
      d.world_size = world_size;
      expect_right(flash_decode_case(d, shape_of(world_size), seed_));
    }
  }
}

std::vector<HeadSize> head_sizes() {
  std::vector<HeadSize> sizes;
  for (std::int64_t dim : {64, 96, 128, 192, 256}) {
    sizes.push_back({dim, DType::kF32, Target::kCpu});
    sizes.push_back({dim, DType::kBF16, Target::kCpu});
    sizes.push_back({dim, DType::kBF16, Target::kCuda});
  }
  return sizes;
}

INSTANTIATE_TEST_SUITE_P(OfModels, HeadSizes, testing::ValuesIn(head_sizes()),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}", info.param.dim,
                                              short_name(info.param.dtype),
                                              info.param.target == Target::kCpu ? "cpu" : "gpu");
                         });

}  // namespace
}  // namespace stretto
