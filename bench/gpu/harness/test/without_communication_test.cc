// A program without its communication is still the program: with the data in place it gives the
// same results, and nothing in it waits. If these fail, what gpu_bench says is hidden is made up.
#include "bench/gpu/harness/without_communication.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "bench/gpu/harness/compile_ahead.h"
#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/compiler.h"
#include "stretto/ir/block_ops.h"
#include "stretto/ir/verifier.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/runtime/cuda/nvrtc.h"
#include "stretto/testing/cases/sequence_cases.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto::bench {
namespace {

bool communicates(const Op& op) {
  return op.code == OpCode::kNotify || op.code == OpCode::kWait ||
         op.code == OpCode::kProducerTileNotify || op.code == OpCode::kConsumerTileWait;
}

// Of either level.
void expect_alone(const Program& program) {
  EXPECT_TRUE(program.signals.empty());
  std::vector<const Agent*> agents = {&program.on_start, &program.on_end};
  for (const Role& role : program.roles) {
    EXPECT_NE(role.resource.kind, ResourceKind::kCopyEngine) << role.name;
    for (const Agent& agent : role.agents) agents.push_back(&agent);
  }
  for (const Agent* agent : agents) {
    EXPECT_FALSE(any_op(agent->body, communicates)) << agent->name;
  }
}

SequenceAttentionDesc small_desc(int world_size, DType dtype) {
  SequenceAttentionDesc d{.dtype = dtype, .m = 8 * world_size * 2 + 5};
  d.num_heads = 4, d.num_kv_heads = 2, d.head_dim = 16, d.world_size = world_size;
  return d;
}

// Every other rank's keys and values already lie in the gathered buffers; where the own ones would,
// which the program reads elsewhere, is NaN.
OpCase gathered_case(int world_size, DType dtype, Target target) {
  SequenceAttentionDesc d = small_desc(world_size, dtype);
  OpShape shape{.world_size = world_size, .dtype = dtype, .target = target, .rows = d.m};
  OpCase c = sequence_case("sequence_attention", d, shape, test_seed());
  c.program = without_communication(std::move(c.program));
  std::ptrdiff_t chunk = ceil_div(d.m, std::int64_t{2} * world_size) * d.num_kv_heads * d.head_dim;
  for (const char* name : {"k", "v"}) {
    auto from = static_cast<std::size_t>(c.program.find_tensor(name));
    auto to = static_cast<std::size_t>(c.program.find_tensor(name + std::string("_full")));
    c.unchecked.push_back(name + std::string("_full"));  // as it was put there
    for (int own = 0; own < world_size; ++own) {
      Values& full = c.inputs[static_cast<std::size_t>(own)][to];
      full.assign(static_cast<std::size_t>(2 * world_size * chunk),
                  std::numeric_limits<double>::quiet_NaN());
      for (int owner = 0; owner < world_size; ++owner) {
        if (owner == own) continue;
        const Values& part = c.inputs[static_cast<std::size_t>(owner)][from];
        std::copy_n(part.begin(), chunk, full.begin() + owner * chunk);
        std::copy_n(part.begin() + chunk, chunk,
                    full.begin() + (2 * world_size - 1 - owner) * chunk);
      }
    }
  }
  return c;
}

TEST(WithoutCommunication, GatheredAttentionIsTheSameWhereKeysAndValuesLieThere) {
  for (int world_size : {2, 3, 4}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      OpCase c = gathered_case(world_size, dtype, Target::kCpu);
      expect_alone(c.program);
      EXPECT_EQ(run_case(c), "") << c.config;
    }
  }
}

TEST(WithoutCommunication, GatheredAttentionIsTheSameOnGpus) {
  if (cuda::num_devices() < 2) GTEST_SKIP() << "fewer than two GPUs";
  GpuWorld world({.size = 2});
  EXPECT_EQ(run_gpu_case(world, gathered_case(2, DType::kBF16, Target::kCuda)), "");
}

// As it is timed, and its kernel is as clean as the whole program's.
TEST(WithoutCommunication, TheKernelThatIsTimedCompiles) {
  SequenceAttentionDesc d{.dtype = DType::kBF16, .m = 8192, .num_heads = 32, .num_kv_heads = 8};
  d.head_dim = 128, d.world_size = 4;
  Program whole = sequence_attention(d, default_config(d, Target::kCuda));
  Program alone = without_communication(whole);
  ASSERT_EQ(alone.roles.size() + 1, whole.roles.size());
  EXPECT_EQ(alone.tensors[static_cast<std::size_t>(alone.find_tensor("k_full"))].kind,
            TensorKind::kState);
  expect_alone(lower(alone).program());
  CompiledKernel made = compile_ahead({{"alone", alone}}).front();
  if (made.error.find("NVRTC") != std::string::npos) GTEST_SKIP() << made.error;
  EXPECT_EQ(made.error, "");
  EXPECT_TRUE(made.is_clean()) << made.to_string();
}

// Not what compiles: some have a role that loads ahead what another of its tiles makes, after a
// wait.
TEST(WithoutCommunication, EveryOperatorIsAProgramWithoutIt) {
  int num_alone = 0;
  for (const OperatorInfo& info : catalog()) {
    for (OpShape shape : info.shapes(2)) {
      shape.target = Target::kCuda;
      Program whole = info.program(shape);
      SCOPED_TRACE(testing::Message() << info.name << " m=" << shape.m);
      bool packets = std::any_of(whole.tensors.begin(), whole.tensors.end(),
                                 [](const Tensor& t) { return t.packet; });
      if (packets) {
        expect_user_error([&] { without_communication(whole); }, {whole.name, "packets"});
        continue;
      }
      Program alone = without_communication(whole);
      ASSERT_NO_THROW(verify(alone));
      expect_alone(alone);
      ++num_alone;
    }
  }
  EXPECT_GT(num_alone, 0);
}

}  // namespace
}  // namespace stretto::bench
