// Every default config of the catalog and every candidate of the chooser is one that its operator
// takes as it stands. A user who reads a config in a table or a prediction would else read one that
// did not run, and a refused one would end a choice among others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/base/test_errors.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/candidates.h"
#include "stretto/ops/embedding/embedding.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/norm/norm.h"
#include "stretto/passes/pipeline.h"

namespace stretto {
namespace {

class AskedFor : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int kRanks[] = {1, 2, 3, 4, 8};
  const OperatorInfo& op() const { return *find_operator(GetParam()); }

  static void expect_taken(const std::string& what, const std::function<Program()>& program) {
    try {
      run_pipeline(program());
    } catch (const Error& e) {
      ADD_FAILURE() << what << ": " << e.what();
    }
  }
};

TEST_P(AskedFor, DefaultsAreTakenAsTheyStand) {
  for (int ranks : kRanks) {
    std::vector<OpShape> shapes = op().shapes(ranks);
    shapes.push_back(op().large);
    for (OpShape shape : shapes) {
      shape.world_size = ranks;
      for (Target target : {Target::kCpu, Target::kCuda}) {
        // One tile of a large layer takes CPU ranks no more than a program of small ones.
        shape.target = target;
        expect_taken(
            fmt::format("{} P={} m={} n={} k={} {} {}", op().name, ranks, shape.m, shape.n, shape.k,
                        short_name(shape.dtype), target == Target::kCpu ? "CPU" : "GPU"),
            [&] { return op().program(shape); });
      }
    }
  }
}

TEST_P(AskedFor, CandidatesAreTakenAsTheyStand) {
  for (int ranks : kRanks) {
    for (std::int64_t m : {1, 16, 17, 72, 512, 1000, 4096, 8192}) {
      OpShape shape = op().large;
      shape.world_size = ranks;
      shape.m = m;
      OpCandidates offered = candidates(op().name, shape);
      if (offered.fused.size() == 1) return;  // its default, which the other test takes
      for (const Candidate& c : offered.fused) {
        expect_taken(fmt::format("{} | {}", offered.desc, c.config), c.program);
      }
    }
  }
}

// Fields of a config that an operator shares with others, or that its own other fields leave
// without use: each error names operator, shape, field and value.
TEST(AskedForFields, WithoutUseAreRefused) {
  auto refused = [](const std::function<Program()>& make, const char* shape, const char* what) {
    expect_user_error(make, {shape, what});
  };
  NormDesc norm{.m = 8, .hidden = 64};
  refused([&] { return rms_norm(norm, {.threads = 512}); }, "rms_norm [8, 64] f32",
          "threads is 512, can only be 0");
  refused([&] { return swiglu(norm, {.packets = true}); }, "swiglu [8, 64]", "packets is true");
  refused([&] { return add_row(norm, {.threads = 128}); }, "add_row [8, 64]", "threads is 128");
  VocabDesc vocab{.m = 8, .hidden = 64, .vocab = 16};
  refused([&] { return embedding(vocab, {.num_stages = 3}); }, "embedding ",
          "num_stages is 3, can only be 0: of lm_head alone");
  AttentionDesc heads{.m = 8, .max_tokens = 16};
  refused([&] { return rope(heads, {.num_stages = 2}); }, "rope m=8 cache=16", "num_stages is 2");
  refused([&] { return rope(heads, {.cluster_size = 2}); }, "rope m=8", "cluster_size is 2");
  SequenceAttentionDesc sequence{.m = 16, .head_dim = 4, .world_size = 2};
  SequenceAttentionConfig ring = default_ring_config(sequence, Target::kCpu);
  ring.num_queues = 2;
  refused([&] { return ring_attention(sequence, ring); }, "ring_attention m=16",
          "num_queues is 2, can only be 1");
  AgGroupedDesc first{.shape = {.world_size = 2, .m = 16, .num_experts = 4}, .n = 32, .k = 32};
  AgGroupedConfig layer = default_config(first);
  layer.sort_cols = 8;
  refused([&] { return ag_grouped_gemm(first, layer); }, "ag_grouped_gemm P=2 m=16",
          "sort_cols is 8, can only be 0: nothing is sorted");
  layer = default_config(first);
  layer.skip_dead_rows = true;
  refused([&] { return ag_grouped_gemm(first, layer); }, "ag_grouped_gemm P=2 m=16",
          "skip_dead_rows is true, can only be false: k is one step");
  GroupedRsDesc second{.shape = {.world_size = 2, .m = 16, .num_experts = 4}, .n = 32, .k = 32};
  GroupedRsConfig sums = default_config(second);
  sums.last_rows = 2;
  refused([&] { return grouped_gemm_rs(second, sums); }, "grouped_gemm_rs P=2 m=16",
          "last_rows is 2, can only be 1: there are no last_blocks");
  sums = default_config(second);
  sum_at_end(second, sums);
  sums.reduce_rounds = 2;
  refused([&] { return grouped_gemm_rs(second, sums); }, "grouped_gemm_rs P=2 m=16",
          "reduce_rounds is 2, can only be 1: all blocks are last_blocks");
  sums.reduce_rounds = 1, sums.num_reduce_sms = 2;
  refused([&] { return grouped_gemm_rs(second, sums); }, "grouped_gemm_rs P=2 m=16",
          "num_reduce_sms is 2, can only be 0: all blocks are last_blocks");
  sums = default_config(second);
  sums.num_reduce_sms = 0, sums.num_reduce_stages = 2;
  refused([&] { return grouped_gemm_rs(second, sums); }, "grouped_gemm_rs P=2 m=16",
          "num_reduce_stages is 2, can only be 0: sums are made beside products");
  EpDesc ep{.shape = {.world_size = 2, .m = 18, .num_experts = 4},
            .hidden = 32};  // 9 tokens of a rank
  refused([&] { return ep_return(ep, {.channels = 4}); }, "ep_return m=18",
          "channels is 4, can only be 1: who sends and sums waits tile by tile");
  refused([&] { return ep_return(ep, {.num_sum_workers = 1, .channels = 4}); }, "ep_return m=18",
          "channels is 4, can only be 3: 9 tiles of 1 tokens");
}

std::vector<const char*> operator_names() {
  std::vector<const char*> names;
  for (const OperatorInfo& op : catalog()) names.push_back(op.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllOperators, AskedFor, testing::ValuesIn(operator_names()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace stretto
