#include "bench/gpu/products/loops.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/testing/gpu_harness/gpu_case.h"

namespace stretto::bench {
namespace {

// An H200: copies of many gigabytes, and our GEMM of 8192^3 in bf16 at the power it may draw
// (2026-11-21, gpu_bench calibrate and gemm-suite).
constexpr double kHbmBytesPerSecond = 4.25e12, kFlopsPerSecond = 700e12;
constexpr double kGood = 80;      // per cent
constexpr int kSmallWorkers = 3;  // so that each has several tiles

const std::vector<loops::Loop>& loops_of(bool held_out) {
  return held_out ? loops::held_out_loops() : loops::all_loops();
}

// "" or what the small case shows.
std::string check(GpuWorld& world, const loops::Loop& loop, std::uint64_t seed) {
  for (std::int64_t rows : {loop.small.m - 5, std::int64_t{1}}) {
    OpCase c = loop.make_case(loop.program(loop.small, kSmallWorkers), loop.small, rows, seed);
    std::string found = run_gpu_case(world, c, {.seed = seed, .waiver = {}});
    if (!found.empty()) return fmt::format("{} rows: {}", rows, found);
  }
  return "";
}

// Rows in an order of their own, since equal ones would come from the cache.
void pick_rows(GpuWorld& world, GpuProgram& ready, const Program& program,
               std::vector<SymmetricGpuMemory>& kept, std::uint64_t seed) {
  int tensor = program.find_tensor("rows");
  if (tensor < 0) return;
  std::int64_t count = bound_shape(program, tensor)[0];
  for (int set = 0; set < ready.num_sets(); ++set) {
    Values rows = loops::random_rows(count, count, seed + static_cast<std::uint64_t>(set));
    std::vector<std::int32_t> host(rows.begin(), rows.end());
    SymmetricGpuMemory& memory = kept.emplace_back(world.allocate(host.size() * sizeof(host[0])));
    world.stream(0).upload(memory.on[0].address(), host.data(), memory.on[0].bytes());
    world.synchronize();
    ready.bind("rows", set, memory);
  }
}

std::vector<double> time_loop(GpuWorld& world, const Program& program, RandomFill& random,
                              const LoopsOptions& options) {
  GpuProgram ready(world, program, num_launch_sets(program, world), random);
  std::vector<SymmetricGpuMemory> rows;
  pick_rows(world, ready, program, rows, options.seed);
  auto ms = time_gpu(
      world.device(0), world.stream(0), {ready.call()},
      {.num_sets = ready.num_sets(), .samples = options.samples, .profile = options.profile});
  ready.executable().wait();
  return std::move(ms.front());
}

}  // namespace

double LoopResult::roofline_ms() const {
  return 1e3 * std::max(bytes / kHbmBytesPerSecond, flops / kFlopsPerSecond);
}

double LoopResult::percent() const { return 100 * roofline_ms() / median(ms); }

std::string LoopResult::to_string() const {
  std::string out = fmt::format("{:20} ", name);
  if (!error.empty()) return out + "FAILED: " + error;
  if (ms.empty()) return out + "right";
  return out +
         fmt::format("right, {:8.4f} ms, roofline {:.4f} ms ({}), {:5.1f} per cent{}", median(ms),
                     roofline_ms(),
                     flops / kFlopsPerSecond > bytes / kHbmBytesPerSecond ? "tensor core" : "HBM",
                     percent(), percent() < kGood ? "  <-- below 80" : "");
}

Json LoopResult::to_json() const {
  Json out = {{"name", name}, {"bytes", bytes}, {"flops", flops}};
  if (held_out) out["held_out"] = true;
  if (!error.empty()) {
    out["error"] = error;
  } else if (!ms.empty()) {
    out.update({{"roofline_ms", roofline_ms()}, {"percent", percent()}, {"ms", ms}});
  }
  return out;
}

std::vector<LabelledProgram> loop_programs(int num_sms, bool held_out) {
  std::vector<LabelledProgram> out;
  for (const loops::Loop& loop : loops_of(held_out)) {
    std::string label = fmt::format("loop {}{}", held_out ? "held out: " : "", loop.name);
    out.push_back({label + " small", loop.program(loop.small, kSmallWorkers)});
    out.push_back({label, loop.program(loop.large, num_sms)});
  }
  return out;
}

namespace {

// The large shape as the options want it; false where it is no cube to give a size to.
bool resize(loops::Loop& loop, std::int64_t size) {
  loops::LoopShape& s = loop.large;
  if (size == 0) return true;
  if (s.m != s.n || s.n != s.k) return false;
  double ratio = static_cast<double>(size) / static_cast<double>(s.m);
  s = {size, size, size};
  loop.flops *= ratio * ratio * ratio;
  return true;
}

}  // namespace

void measure_loops(GpuWorld& world, const LoopsOptions& options,
                   const std::function<void(const LoopResult&)>& done) {
  std::optional<RandomFill> random;  // takes a while where it is not needed
  int num_sms = world.device(0).properties().num_sms;
  for (loops::Loop loop : loops_of(options.held_out)) {
    if (!resize(loop, options.size)) continue;
    LoopResult result{.name = loop.name, .held_out = options.held_out, .flops = loop.flops};
    if (result.name.find(options.only) == std::string::npos) continue;
    try {
      Program program = loop.program(loop.large, num_sms);
      result.bytes = static_cast<double>(bytes_of_tensors(program));
      result.error = check(world, loop, options.seed);
      if (result.error.empty() && (options.samples > 0 || options.profile)) {
        if (!random) random.emplace(world, options.seed);
        result.ms = time_loop(world, program, *random, options);
      }
    } catch (const Fault& e) {
      result.error = e.what();
      world.synchronize();
      world.clear_fault();
    } catch (const Error& e) {
      result.error = e.what();
    }
    done(result);
  }
}

}  // namespace stretto::bench
