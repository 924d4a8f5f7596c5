#include "bench/gpu/attention/attention_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/harness/traces.h"
#include "bench/gpu/harness/without_communication.h"
#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/attention/flash_decode.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/ops/ulysses/ulysses.h"

namespace stretto::bench {
namespace {

struct Row {
  AttentionRanksResult result;
  std::function<Program(int world_size)> program;
  std::function<Program()> alone;  // what one GPU runs that needs no other; none: `program`
  // What `program` has to hide, by itself; where there is one, `program` without it is timed, too.
  std::function<Program(int world_size)> exchange;
};

// 32 heads of 128 with 8 of keys, as in Llama 3 8B.
enum class Form { kGathered, kRing, kTokenRing };

Program sequence_program(const SequenceAttentionDesc& d, Form form) {
  switch (form) {
    case Form::kGathered:
      return sequence_attention(d, default_config(d, Target::kCuda));
    case Form::kRing:
      return ring_attention(d, default_ring_config(d, Target::kCuda));
    case Form::kTokenRing:
      break;
  }
  return token_ring(d, default_token_ring_config(d, Target::kCuda));
}

// Every rank's keys and values on all.
Program gather(std::int64_t m, int world_size) {
  CollectiveDesc d{.dtype = DType::kBF16, .m = m, .n = 2 * 8 * 128, .world_size = world_size};
  return all_gather(d, default_config(d, Target::kCuda));
}

Row sequence_row(std::int64_t m, Form form) {
  constexpr const char* kNames[] = {"gathered", "ring", "token ring"};
  Row row{.program = [=](int world_size) {
    SequenceAttentionDesc d{.dtype = DType::kBF16,
                            .m = m,
                            .num_heads = 32,
                            .num_kv_heads = 8,
                            .head_dim = 128,
                            .world_size = world_size};
    return sequence_program(d, form);
  }};
  row.result.label = fmt::format("{} m={}", kNames[static_cast<int>(form)], m);
  row.result.flops = 2.0 * 32 * 128 * static_cast<double>(m) * static_cast<double>(m);
  if (form != Form::kGathered)
    row.alone = [=] { return sequence_row(m, Form::kGathered).program(1); };
  if (form == Form::kGathered) row.exchange = [=](int world_size) { return gather(m, world_size); };
  return row;
}

// The projections of the same model around attention with spread heads.
Row projection_row(std::int64_t m, bool queries) {
  std::int64_t hidden = 4096, n = queries ? hidden * 3 / 2 : hidden;
  Row row{.program = [=](int world_size) {
    UlyssesDesc d{.world_size = world_size,
                  .m = m,
                  .n = n,
                  .k = hidden,
                  .dtype = DType::kBF16,
                  .weight_dtype = DType::kBF16};
    return queries ? gemm_a2a(d, default_gemm_a2a_config(d, Target::kCuda))
                   : a2a_gemm(d, default_a2a_gemm_config(d, Target::kCuda));
  }};
  row.result.label = fmt::format("{} m={}", queries ? "gemm_a2a" : "a2a_gemm", m);
  row.result.flops = 2.0 * static_cast<double>(m * n) * static_cast<double>(hidden);
  return row;
}

// One query token over a cache of n.
Row decode_row(std::int64_t n) {
  Row row{.program = [=](int world_size) {
    FlashDecodeDesc d{.dtype = DType::kBF16,
                      .max_tokens = n,
                      .num_heads = 32,
                      .num_kv_heads = 8,
                      .head_dim = 128,
                      .world_size = world_size};
    return flash_decode(d, default_config(d, Target::kCuda));
  }};
  row.result.label = fmt::format("decode tokens={}", n);
  row.result.bytes = 2.0 * 2 * 8 * 128 * static_cast<double>(n);
  return row;
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (std::int64_t n : {65536, 131072, 262144, 524288, 1048576}) all.push_back(decode_row(n));
  for (Form form : {Form::kGathered, Form::kRing, Form::kTokenRing}) {
    for (std::int64_t m : {8192, 16384, 32768, 65536, 131072}) all.push_back(sequence_row(m, form));
  }
  for (bool queries : {true, false}) {
    for (std::int64_t m : {8192, 32768}) all.push_back(projection_row(m, queries));
  }
  return all;
}

Program alone(const Row& row) { return row.alone ? row.alone() : row.program(1); }

// As many as asked, but not for much longer than a second.
int samples_of(const Row& row, int world_size, const AttentionRanksOptions& options) {
  constexpr double kFlopsPerSecond = 6e14;
  constexpr int kLeast = 5;
  double seconds = row.result.flops / (kFlopsPerSecond * world_size);
  return seconds * options.samples < 1 ? options.samples
                                       : std::max(kLeast, static_cast<int>(1 / seconds));
}

// Fills `row.result.error` where `measure` fails.
void guarded(GpuWorld& world, Row& row, const std::function<void()>& measure) {
  if (!row.result.error.empty()) return;
  try {
    measure();
  } catch (const Error& e) {
    row.result.error = fmt::format("on {} GPUs: {}", world.size(), e.what());
  }
}

std::vector<double> measured(GpuWorld& world, const Program& program, Row& row, RandomFill& random,
                             const AttentionRanksOptions& options) {
  std::vector<double> ms;
  guarded(world, row, [&] {
    ms = time_program(world, program, random, {.samples = samples_of(row, world.size(), options)});
  });
  return ms;
}

// What was timed once more, with the recorder, in turn with `without` where there is that.
void trace_rows(GpuWorld& world, const Program& program, const Program* without,
                const std::string& label, RandomFill& random,
                const AttentionRanksOptions& options) {
  GpuProgram with(world, program, 1, random, {.record = true});
  std::optional<GpuProgram> alone;
  auto launches_of = [](const char* name, const GpuProgram& p) {
    return traced(
        name, "", [call = p.call()] { call(0); }, &p.executable());
  };
  std::vector<TracedLaunch> launches = {launches_of("with", with)};
  if (without != nullptr) {
    alone.emplace(world, *without, 1, random, GpuProgramOptions{.record = true});
    launches.push_back(launches_of("without communication", *alone));
  }
  write_traces(world, launches, options.traces, label);
}

// The program and the same without its communication. The difference is a few per cent of either,
// so it has every sample that was asked for, however long they take.
void measure_both(GpuWorld& world, Row& row, RandomFill& random,
                  const AttentionRanksOptions& options) {
  guarded(world, row, [&] {
    Program program = row.program(world.size());
    int sets = num_launch_sets(program, world);
    GpuProgram with(world, program, sets, random);
    GpuProgram without(world, without_communication(program), sets, random);
    try {
      auto ms = time_ranks(world, {with.call(), without.call()},
                           {.num_sets = sets, .samples = options.samples});
      with.executable().wait();
      row.result.all = std::move(ms[0]), row.result.without = std::move(ms[1]);
      if (!options.traces.empty()) {
        Program alone = without_communication(program);
        trace_rows(world, program, &alone, row.result.label, random, options);
      }
    } catch (const Fault&) {
      world.synchronize();
      world.clear_fault();
      throw;
    }
  });
}

}  // namespace

double AttentionRanksResult::efficiency() const { return median(one) / (world_size * median(all)); }

MedianInterval AttentionRanksResult::hidden() const {
  double copies = median(exchange);
  std::vector<double> parts;
  for (std::size_t i = 0; i < all.size(); ++i) parts.push_back(1 - (all[i] - without[i]) / copies);
  return median_interval(std::move(parts));
}

std::string AttentionRanksResult::to_string() const {
  if (!error.empty()) return fmt::format("{:24} FAILED: {}", label, error);
  auto rate = [&](const std::vector<double>& ms) {
    return flops > 0 ? fmt::format("{:5.0f} TFLOP/s", flops / median(ms) * 1e-9)
                     : fmt::format("{:5.0f} GB/s", bytes / median(ms) * 1e-6);
  };
  std::string gathered;
  if (!exchange.empty()) {
    MedianInterval longer = paired_ratio(all, without), part = hidden();
    gathered = fmt::format(
        " | without communication {:.4f} ms, with {:.3f} [{:.3f}, {:.3f}] of that; gather alone "
        "{:.4f} ms, {:.2f} [{:.2f}, {:.2f}] hidden",
        median(without), longer.median, longer.low, longer.high, median(exchange), part.median,
        part.low, part.high);
  }
  return fmt::format("{:24} one {:9.4f} ms {} | {} GPUs {:9.4f} ms {} | {:.3f} of 1/{}{}", label,
                     median(one), rate(one), world_size, median(all), rate(all), efficiency(),
                     world_size, gathered);
}

Json AttentionRanksResult::to_json() const {
  Json out = {{"label", label}, {"ranks", world_size}};
  if (!error.empty()) {
    out["error"] = error;
    return out;
  }
  out.update({{"flops", flops}, {"bytes", bytes}, {"one_ms", one}, {"all_ms", all}});
  if (!exchange.empty()) out.update({{"without_ms", without}, {"exchange_ms", exchange}});
  return out;
}

void measure_attention_ranks(const AttentionRanksOptions& options,
                             const std::function<void(const AttentionRanksResult&)>& done) {
  std::vector<Row> all = rows();
  std::erase_if(all, [&](const Row& row) {
    return row.result.label.find(options.only) == std::string::npos;
  });
  std::vector<LabelledProgram> programs;
  for (const Row& row : all) {
    if (!row.alone) programs.push_back({row.result.label, row.program(1)});
    programs.push_back({row.result.label, row.program(options.world_size)});
    if (!row.exchange) continue;
    programs.push_back({row.result.label, without_communication(programs.back().program)});
    programs.push_back({row.result.label, row.exchange(options.world_size)});
  }
  compile_ahead(programs);
  {
    GpuWorld one({.size = 1});
    RandomFill random(one, options.seed);
    for (Row& row : all) row.result.one = measured(one, alone(row), row, random, options);
  }
  GpuWorld world({.size = options.world_size});
  RandomFill random(world, options.seed);
  for (Row& row : all) {
    row.result.world_size = options.world_size;
    if (row.exchange) {
      measure_both(world, row, random, options);
      row.result.exchange = measured(world, row.exchange(world.size()), row, random, options);
    } else {
      Program program = row.program(world.size());
      row.result.all = measured(world, program, row, random, options);
      guarded(world, row, [&] {
        if (options.traces.empty()) return;
        trace_rows(world, program, nullptr, row.result.label, random, options);
      });
    }
    done(row.result);
  }
}

}  // namespace stretto::bench
