#include "bench/gpu/worlds/program_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/verifier.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/ops/measure/gpu_time.h"
#include "stretto/runtime/processes/launch.h"
#include "stretto/runtime/world.h"

namespace stretto::bench {
namespace {

constexpr std::size_t kMaxProgramBytes = std::size_t{16} << 20;
constexpr unsigned kLongestSeconds = 120;                  // then a rank that hangs is ended
constexpr std::chrono::milliseconds kPartTimeout{60'000};  // another rank may be compiling

Program read_program(const std::string& file, int ranks) {
  Program p = parse(read_file(file, kMaxProgramBytes), file);
  verify(p);
  if (p.world_size != ranks) {
    throw UserError(fmt::format("{}: is for {} ranks, not {}", file, p.world_size, ranks));
  }
  return p;
}

int run_part(const Settings& s, const std::vector<std::string>& files) {
  ::alarm(kLongestSeconds);
  auto bootstrap = bootstrap_address_of_environment();
  if (!bootstrap) throw UserError("programs --part: no RANK and WORLD_SIZE");
  World host({.bootstrap = *bootstrap, .timeout = kPartTimeout});
  Rank& rank = host.local_rank();
  GpuWorld world(rank, {});
  RandomFill random(world, s.seed);
  Json out;
  for (const std::string& file : files) {
    Program program = read_program(file, world.size());
    GpuProgram ready(world, program, num_launch_sets(program, world), random);
    std::this_thread::sleep_for(std::chrono::milliseconds(s.rest_ms));
    std::vector<double> ms = time_in_a_row(
        world, ready.call(),
        {.num_sets = ready.num_sets(), .warmup_ms = s.warmup_ms, .samples = s.samples});
    ready.executable().wait();
    if (rank.index() != 0) continue;
    fmt::print("{}: {:.4f} ms\n", file, median(ms));
    std::fflush(stdout);
    out["programs"].push_back({{"file", file}, {"ms", ms}});
  }
  if (rank.index() == 0 && !s.out.empty()) std::ofstream(s.out) << out.dump(1) << "\n";
  return 0;
}

}  // namespace

int run_program_files(const Settings& s, const std::vector<std::string>& files, bool part) {
  if (part) return run_part(s, files);
  for (const std::string& file : files) read_program(file, s.world_size);
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                      "--seed",
                                      std::to_string(s.seed),
                                      "programs",
                                      "--part",
                                      "--ranks",
                                      std::to_string(s.world_size),
                                      "--samples",
                                      std::to_string(s.samples),
                                      "--warmup",
                                      std::to_string(s.warmup_ms),
                                      "--rest",
                                      std::to_string(s.rest_ms)};
  if (!s.out.empty()) command.insert(command.end(), {"-o", s.out});
  command.insert(command.end(), files.begin(), files.end());
  return launch_processes({.num_processes = s.world_size, .command = command});
}

}  // namespace stretto::bench
