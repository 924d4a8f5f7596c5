// Exchanges in one hop with slots in turn: who has them by default, and that kernels have registers
// for them. If these fail, short steps ask where they need not, or long ones take memory twice.
#include <gtest/gtest.h>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/codegen/kernel.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/passes/pipeline.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {
namespace {

EpDesc step(int world_size, std::int64_t tokens) {
  return {
      .shape = {.world_size = world_size, .m = tokens * world_size, .top_k = 8, .num_experts = 256},
      .dtype = DType::kBF16,
      .hidden = 7168,
      .expert_groups = world_size};
}

int send_slots(int world_size, std::int64_t tokens, bool private_results) {
  return default_send_config(step(world_size, tokens), Target::kCuda, private_results).num_slots;
}
int return_slots(int world_size, std::int64_t tokens) {
  return default_return_config(step(world_size, tokens), Target::kCuda).num_slots;
}

TEST(EpSlots, DispatchHasTwoOfShortStepsWhoseResultsPeersDoNotReach) {
  for (int world_size : {2, 4, 8}) {
    EXPECT_EQ(send_slots(world_size, 128, false), 1);
    EXPECT_EQ(send_slots(world_size, 128, true), 2);
    EXPECT_EQ(send_slots(world_size, 4096, true), 1);
  }
}

TEST(EpSlots, CombineHasTwoWhereFewSumsOfNothingTravel) {
  EXPECT_EQ(return_slots(1, 128), 1);
  EXPECT_EQ(return_slots(2, 256), 2);
  EXPECT_EQ(return_slots(4, 128), 2);
  EXPECT_EQ(return_slots(8, 16), 2);
  EXPECT_EQ(return_slots(8, 128), 1);  // a third of the tokens has no expert on a rank
  EXPECT_EQ(return_slots(4, 4096), 1);
}

TEST(EpSlots, KernelsDoNotSpill) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  for (int world_size : {1, 2, 4, 8}) {
    const EpDesc d = step(world_size, 128);
    const SendConfig sends = default_send_config(d, Target::kCuda, true);
    ReturnConfig returns = default_return_config(d, Target::kCuda);
    returns.num_slots = 2;
    for (const Program& program :
         {ep_send(d, sends), ep_send_fp8(d, sends), ep_return(d, returns)}) {
      const std::string what = program.name + " " + to_string(d);
      if (!is_drawn(what, 3)) continue;
      SCOPED_TRACE(what);
      GeneratedKernel kernel = generate_kernel(run_pipeline(program));
      cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "kernel.cu", {});
      std::vector<cuda::KernelReport> reports = cuda::kernel_reports(image.log);
      ASSERT_FALSE(reports.empty()) << image.log;
      for (const cuda::KernelReport& r : reports) {
        EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0) << r.kernel;
      }
    }
  }
}

TEST(EpSlots, ThereIsAtLeastOne) {
  expect_user_error([&] { ep_send(step(2, 4), {.num_slots = 0}); }, {"num_slots is 0"});
  expect_user_error([&] { ep_return(step(2, 4), {.num_slots = 0}); }, {"num_slots is 0"});
}

}  // namespace
}  // namespace stretto
