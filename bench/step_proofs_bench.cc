// What proving all steps of a server takes, with nothing cached: how long on how many threads, how
// much memory, and whether every proof is complete. Reads config.json alone, needs no GPU.
//   STRETTO_CACHE_DIR=$(mktemp -d) step_proofs_bench MODEL_DIR [cpu|cuda] [rows] [sequences]
//   [positions] [ranks] [auto|fused|several]    experts' sums: --fused-experts auto, on or off
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <mutex>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/threads.h"
#include "stretto/model/checkpoint/config.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/batch_plan.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Made {
  std::string label;
  stretto::Program program;
  stretto::ProveOptions options;
  double cpu_seconds = 0;
  std::string failure;
};

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Of this thread, which proves one program after the other.
double thread_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double peak_mib() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_maxrss) / 1024;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw stretto::UserError("usage: step_proofs_bench MODEL_DIR [cpu|cuda] [rows] ..");
  auto number = [&](int at, std::int64_t otherwise) {
    return argc > at ? std::stoll(argv[at]) : otherwise;
  };
  const bool on_gpus = argc > 2 && std::string(argv[2]) == "cuda";
  const std::int64_t rows = number(3, 8192), sequences = number(4, 256),
                     positions = number(5, 131072);
  const int ranks = static_cast<int>(number(6, 1));
  const std::string experts = argc > 7 ? argv[7] : "auto";
  using stretto::FusedExperts;
  const FusedExperts fused_experts = experts == "auto"    ? FusedExperts::kAuto
                                     : experts == "fused" ? FusedExperts::kOn
                                                          : FusedExperts::kOff;
  stretto::ModelConfig config = stretto::read_config(argv[1]);
  config.max_positions = positions;
  constexpr std::int64_t kPage = 64;
  stretto::ModelShape shape =
      stretto::batch_shape(config, ranks,
                           {.dtype = on_gpus ? stretto::DType::kBF16 : stretto::DType::kF32,
                            .max_rows = rows,
                            .max_tokens = positions,
                            .cache = {.page = kPage,
                                      .num_pages = 4 * positions / kPage,
                                      .sequences = sequences,
                                      .prompts = on_gpus ? stretto::PagedCache::kPromptsOnGpus : 0},
                            .plan_for = on_gpus ? stretto::Target::kCuda : stretto::Target::kCpu,
                            .fused_experts = fused_experts});
  shape.weight_dtype = shape.dtype;

  const auto begin = Clock::now();
  std::vector<Made> all;
  std::vector<stretto::BatchBounds> bounds = stretto::batch_bounds(shape, rows);
  for (auto b = bounds.rbegin(); b != bounds.rend(); ++b) {
    stretto::ModelShape of_step = shape;
    of_step.paged.sequences = b->sequences;
    stretto::step::Plan plan = stretto::plan_step(of_step, b->rows).plan;
    std::vector<stretto::ProveOptions> proofs(plan.programs.size());
    if (on_gpus) proofs = stretto::step_proofs(of_step, plan, *b, shape.target.gpu());
    for (std::size_t i = 0; i < plan.programs.size(); ++i) {
      all.push_back({.label = fmt::format("{}, step of {} rows", plan.programs[i].name, b->rows),
                     .program = std::move(plan.programs[i]),
                     .options = std::move(proofs[i]),
                     .failure = {}});
    }
  }
  const double planned = std::chrono::duration<double>(Clock::now() - begin).count();
  const int threads = stretto::num_processors();
  stretto::side_by_side(all.size(), threads, [&](std::size_t i) {
    const double start = thread_seconds();
    try {
      stretto::prove(stretto::lower(std::move(all[i].program)), all[i].options);
    } catch (const std::exception& e) {
      all[i].failure = e.what();
    }
    all[i].cpu_seconds = thread_seconds() - start;
  });
  const double whole = std::chrono::duration<double>(Clock::now() - begin).count();
  std::size_t failed = 0;
  for (const Made& made : all) {
    if (made.failure.empty()) continue;
    ++failed;
    fmt::print("not proved: {}: {}\n", made.label, made.failure);
  }
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.cpu_seconds > b.cpu_seconds; });
  for (std::size_t i = 0; i < std::min<std::size_t>(5, all.size()); ++i) {
    fmt::print("{:.2f} s of CPU time: {}\n", all[i].cpu_seconds, all[i].label);
  }
  fmt::print(
      "{} steps, {} programs, {} not proved: {:.1f} s on {} threads ({:.1f} of it planning), "
      "{:.1f} "
      "s of CPU time, {:.0f} MiB at most\n",
      bounds.size(), all.size(), failed, whole, threads, planned, cpu_seconds(), peak_mib());
  return failed == 0 ? 0 : 1;
} catch (const std::exception& e) {
  fmt::print(stderr, "step_proofs_bench: {}\n", e.what());
  return 2;
}
