// What the copy queues of ag_gemm do on GPUs. If these fail, a queue says that rows have arrived
// which have not, misses rows of a ragged matrix, or takes SMs from the product.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto {
namespace {

constexpr std::int64_t kCols = 4;

struct Job {
  AgGemmDesc desc;
  AgGemmConfig config;
  std::int64_t m = 0;

  std::int64_t run() const { return ceil_div(m, std::int64_t{desc.world_size}); }
  std::int64_t rows_of(int rank) const {
    return std::clamp<std::int64_t>(m - rank * run(), 0, run());
  }
};

// Executes one rank's lists on rows made of numbers, and checks at every signal what it promises.
class Player {
 public:
  Player(const Job& job, const Program& schedule, const LaunchPlan& launch, int rank)
      : job_(job), schedule_(schedule), launch_(launch), rank_(rank) {}

  void play(std::mt19937& random) {
    full_.assign(static_cast<std::size_t>(job_.m * kCols), -1);
    std::vector<std::vector<EngineStep>> queues =
        engine_steps(schedule_, launch_.signal_offsets, launch_.engines, rank_, {job_.m});
    std::vector<std::size_t> next(queues.size(), 0);
    std::vector<std::size_t> ready;
    while (true) {  // any interleaving of queues
      ready.clear();
      for (std::size_t q = 0; q < queues.size(); ++q) {
        if (next[q] < queues[q].size()) ready.push_back(q);
      }
      if (ready.empty()) break;
      std::size_t q = ready[random() % ready.size()];
      step(queues[q][next[q]++]);
    }
    for (int owner = 0; owner < job_.desc.world_size; ++owner) {
      expect_rows(owner, 0, job_.rows_of(owner), owner == rank_ ? "own rows stay" : "at the end");
    }
    EXPECT_EQ(num_done_, job_.desc.world_size - 1);
  }

 private:
  static float element(int owner, std::int64_t at) { return static_cast<float>(owner * 1000 + at); }

  void step(const EngineStep& s) {
    if (s.kind == EngineStep::Kind::kAwaitBell) {
      ASSERT_GE(s.bell, launch_.engines.first_gate_bell) << "nothing of the kernel is waited for";
      return;
    }
    if (s.kind == EngineStep::Kind::kCopy) return copy(s.copy);
    const EngineMark& m =
        launch_.engines.marks[static_cast<std::size_t>(rank_)][static_cast<std::size_t>(s.mark)];
    auto offset = [&](const char* name) {
      return launch_.signal_offsets[static_cast<std::size_t>(schedule_.find_signal(name))];
    };
    if (m.rank != rank_) {
      EXPECT_EQ(m.counter, offset("done") + rank_);
      EXPECT_EQ(m.count, m.quota) << "once";
      expect_rows(m.rank, 0, job_.rows_of(m.rank), "read by then");
      ++num_done_;
      return;
    }
    std::int64_t channel = m.counter - offset("arrived");
    EXPECT_EQ(m.count, ++seen_[channel]) << "counted one by one";
    if (m.count < m.quota) return;
    std::int64_t blocks =
        ceil_div(ceil_div(job_.desc.m, std::int64_t{job_.desc.world_size}), job_.config.comm_rows);
    std::int64_t per_channel = ceil_div(blocks, job_.config.channels_per_rank);
    std::int64_t channels = ceil_div(blocks, per_channel),
                 rows = per_channel * job_.config.comm_rows;
    auto owner = static_cast<int>(channel / channels);
    std::int64_t first = channel % channels * rows;
    EXPECT_NE(owner, rank_);
    expect_rows(owner, first, std::min(first + rows, job_.rows_of(owner)), "has arrived");
  }

  void copy(const EngineCopy& c) {
    EXPECT_EQ(schedule_.tensors[static_cast<std::size_t>(c.from_tensor)].name, "a");
    EXPECT_EQ(schedule_.tensors[static_cast<std::size_t>(c.to_tensor)].name, "full");
    EXPECT_NE(c.from_rank, rank_);
    EXPECT_EQ(c.to_rank, rank_);
    EXPECT_EQ(c.rows, 1) << "whole rows are contiguous";
    std::int64_t from = c.from_offset / 4, to = c.to_offset / 4;
    ASSERT_LE(from * 4 + c.row_bytes, job_.rows_of(c.from_rank) * kCols * 4) << "padding is read";
    for (std::int64_t i = 0; i < c.row_bytes / 4; ++i) {
      full_.at(static_cast<std::size_t>(to + i)) = element(c.from_rank, from + i);
    }
  }

  void expect_rows(int owner, std::int64_t begin, std::int64_t end, const char* what) {
    for (std::int64_t i = begin * kCols; i < end * kCols; ++i) {
      float want = owner == rank_ ? -1 : element(owner, i);
      ASSERT_EQ(full_[static_cast<std::size_t>(owner * job_.run() * kCols + i)], want)
          << what << ": owner " << owner << " element " << i << " on rank " << rank_;
    }
  }

  const Job& job_;
  const Program& schedule_;
  const LaunchPlan& launch_;
  int rank_;
  std::vector<float> full_;
  std::map<std::int64_t, std::int64_t> seen_;
  int num_done_ = 0;
};

TEST(AgGemmQueues, EverySignalComesAfterItsRows) {
  std::uint64_t seed = test_seed();
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int world = 2; world <= 4; ++world) {
    for (int queues = 1; queues < world; ++queues) {
      Job job{.desc = {.world_size = world, .m = 23, .n = 8, .k = kCols},
              .config = {.loop = {.tile = {.bm = 4, .bn = 8, .bk = 4}},
                         .num_gather_workers = queues,
                         .comm_rows = 2,
                         .channels_per_rank = 2}};
      Lowered compiled = lower(ag_gemm(job.desc, job.config));
      GeneratedKernel kernel = generate_kernel(compiled.program());
      ASSERT_TRUE(kernel.launch.engines.on_sms.empty()) << kernel.launch.engines.on_sms[0].why;
      EXPECT_EQ(kernel.launch.engines.num_queues, queues);
      EXPECT_EQ(kernel.launch.grid, 1) << "the queues take no SM";
      for (std::int64_t m : {0, 1, 5, 22, 23}) {
        job.m = m;
        for (int rank = 0; rank < world; ++rank) {
          SCOPED_TRACE(fmt::format("P={} queues={} m={} seed={}", world, queues, m, seed));
          Player(job, compiled.program(), kernel.launch, rank).play(random);
        }
      }
    }
  }
}

// All SMs multiply, few calls of the host gather, and the kernel has the registers it needs.
TEST(AgGemmQueues, TheDefaultLeavesEverySmToTheProduct) {
  for (int world : {2, 4}) {
    AgGemmDesc d{.world_size = world,
                 .m = 8192,
                 .n = 4096,
                 .k = 4096,
                 .a_dtype = DType::kBF16,
                 .b_dtype = DType::kBF16,
                 .c_dtype = DType::kBF16};
    Lowered compiled = lower(ag_gemm(d, default_config(d, Target::kCuda, Gather::kPull)));
    GeneratedKernel kernel = generate_kernel(compiled.program());
    ASSERT_TRUE(kernel.launch.engines.on_sms.empty());
    EXPECT_EQ(kernel.launch.grid, GpuTarget{}.sms);
    std::size_t steps = 0;
    for (const std::vector<EngineStep>& queue : engine_steps(
             compiled.program(), kernel.launch.signal_offsets, kernel.launch.engines, 0, {d.m})) {
      steps += queue.size();
    }
    EXPECT_EQ(steps, static_cast<std::size_t>(world - 1) * (1 + 4 * 2 + 1));  // the gate's bell
    if (!cuda::has_nvrtc()) continue;
    cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "ag_gemm.cu");
    for (const cuda::KernelReport& r : cuda::kernel_reports(image.log)) {
      EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0) << r.kernel;
      EXPECT_TRUE(r.warnings.empty()) << r.warnings[0];
    }
  }
}

// Widths of tiles whose warpgroups take turns, with what takes registers besides.
TEST(AgGemmQueues, DefaultsOfManyColumnsDoNotSpill) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC";
  struct Row {
    int world = 2;
    std::int64_t n = 28672;
    bool bias = false, b_kn = false, gathered = false;
  };
  const std::vector<Row> all = {{.n = 14336},      {}, {.world = 3}, {.bias = true}, {.b_kn = true},
                                {.gathered = true}};
  for (const Row& row : drawn_of("defaults of many columns", all, 3)) {
    AgGemmDesc d{.world_size = row.world, .m = 8192, .n = row.n, .k = 4096};
    d.a_dtype = d.b_dtype = d.c_dtype = DType::kBF16;
    d.bias = row.bias;
    d.b_kn = row.b_kn;
    d.gathered = row.gathered;
    AgGemmConfig config = default_config(d, Target::kCuda, Gather::kSend);
    EXPECT_EQ(config.loop.num_consumers, 2);
    Lowered compiled = lower(ag_gemm(d, config));
    GeneratedKernel kernel = generate_kernel(compiled.program());
    cuda::KernelImage image = cuda::compile_cuda(kernel.expanded, "ag_gemm.cu");
    for (const cuda::KernelReport& r : cuda::kernel_reports(image.log)) {
      EXPECT_EQ(r.spill_store_bytes + r.spill_load_bytes + r.stack_bytes, 0)
          << r.kernel << ' ' << row.world << " ranks, tile.bn " << config.loop.tile.bn;
    }
  }
}

}  // namespace
}  // namespace stretto
