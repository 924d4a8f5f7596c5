// Kernels of every head size. If these fail, a model with large heads does not run on GPUs: its
// blocks ask for more shared memory than there is.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/decode_attention.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/packed_attention.h"
#include "stretto/ops/attention/paged_decode.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/passes/pipeline.h"

namespace stretto {
namespace {

void expect_fits(const OperatorInfo& op, OpShape shape) {
  shape.target = Target::kCuda;
  Program schedule = run_pipeline(op.program(shape));
  EXPECT_NO_THROW(generate_kernel(schedule))
      << op.name << " m=" << shape.m << " k=" << shape.k << " " << short_name(shape.dtype);
}

TEST(GpuFit, DecodingTakesHeadsOfUpTo256) {
  for (std::int64_t k : {32, 64, 96, 128, 192, 224, 256}) {
    expect_fits(decode_attention_info(), {.world_size = 2, .k = k, .dtype = DType::kBF16});
    for (std::int64_t m : {1, 2, 3, 4, 16, 17, 32, 33, 64, 65, 128}) {
      expect_fits(flash_decode_info(), {.world_size = 2, .m = m, .k = k, .dtype = DType::kBF16});
    }
  }
}

// In pages of four tokens and of 128; few tokens and many.
TEST(GpuFit, PackedAndPagedSequencesTakeHeadsOfUpTo256) {
  for (std::int64_t k : {32, 64, 96, 128, 192, 224, 256}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (std::int64_t m : {1, 63, 4096}) {
        expect_fits(attention_info(), {.m = m, .k = k, .dtype = dtype});
        expect_fits(packed_attention_info(), {.m = m, .k = k, .dtype = dtype});
        expect_fits(paged_attention_info(), {.m = m, .n = 4096, .k = k, .dtype = dtype});
        expect_fits(paged_attention_fp8_info(), {.m = m, .n = 4096, .k = k, .dtype = dtype});
      }
    }
  }
}

// In pages of four tokens and of 64.
TEST(GpuFit, PagedDecodingTakesHeadsOfUpTo256) {
  for (std::int64_t k : {32, 64, 96, 128, 192, 224, 256}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (std::int64_t m : {1, 3, 64}) {
        expect_fits(paged_decode_info(), {.m = m, .n = 128, .k = k, .dtype = dtype});
        expect_fits(paged_decode_info(), {.m = m, .n = 8192, .k = k, .dtype = dtype});
        expect_fits(paged_decode_fp8_info(), {.m = m, .n = 128, .k = k, .dtype = dtype});
        expect_fits(paged_decode_fp8_info(), {.m = m, .n = 8192, .k = k, .dtype = dtype});
      }
    }
  }
}

// In the order of prompts, with few heads of queries for one of keys, and many.
TEST(GpuFit, DecodingInTheOrderOfPromptsTakesHeadsOfUpTo256) {
  for (std::int64_t k : {32, 64, 96, 128, 192, 224, 256}) {
    for (int heads : {2, 8, 64}) {
      for (bool fp8 : {false, true}) {
        PagedDecodeDesc d{.dtype = DType::kBF16, .m = 64, .page = 64, .num_pages = 512};
        d.max_tokens = 1024, d.num_heads = heads, d.num_kv_heads = 2, d.head_dim = k, d.fp8 = fp8;
        Program p = paged_decode(d, prompt_order_config(d, Target::kCuda).value());
        EXPECT_NO_THROW(generate_kernel(run_pipeline(p))) << "heads=" << heads << " k=" << k;
      }
    }
  }
}

// Of a GPU whose blocks have less shared memory than a Hopper's, decoding has fewer blocks of keys
// ahead, and its kernels still fit.
TEST(GpuFit, DecodingGoesByTheSharedMemoryOfItsTarget) {
  OpShape shape{.world_size = 2, .m = 8, .k = 128, .dtype = DType::kBF16};
  int last = 1000;
  bool fewer = false;
  for (std::size_t kilobytes : {227, 163, 123, 99}) {
    const GpuTarget gpu{.shared_bytes = kilobytes * 1024};
    shape.target = gpu;
    const int stages = decode_stages(64, 64, 128, gpu);
    EXPECT_LE(stages, last) << kilobytes << " KB";
    fewer |= stages < last && last <= 4;
    last = stages;
    if (stages == 0) continue;
    for (const OperatorInfo& op : {decode_attention_info(), flash_decode_info()}) {
      Program schedule = run_pipeline(op.program(shape));
      EXPECT_NO_THROW(generate_kernel(schedule, {.target = gpu})) << op.name << kilobytes << " KB";
    }
  }
  EXPECT_TRUE(fewer) << "the target counts for nothing";
}

TEST(GpuFit, SequencesOverRanksTakeHeadsOfUpTo256) {
  for (int world_size : {1, 2, 4, 8}) {
    for (std::int64_t k : {64, 96, 128, 192, 224, 256}) {
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        OpShape shape{.world_size = world_size, .k = k, .dtype = dtype};
        expect_fits(sequence_attention_info(), shape);
        expect_fits(ring_attention_info(), shape);
        expect_fits(token_ring_info(), shape);
      }
    }
  }
}

}  // namespace
}  // namespace stretto
