#include "bench/gpu/worlds/processes.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "bench/gpu/harness/check.h"
#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/runtime/processes/launch.h"
#include "stretto/runtime/world.h"
#include "stretto/testing/gpu_harness/gpu_case.h"

namespace stretto::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr unsigned kLongestPartSeconds = 240;  // then a rank that hangs is ended
constexpr milliseconds kHostTimeout{60'000};   // another rank may be compiling
constexpr milliseconds kKernelTimeout{20'000};
constexpr int kLaunchesBeforeDeath = 20;
constexpr char kWell = 'k';

// What runs on SMs alone before what needs copy engines, which one GPU may have too few of for two.
constexpr const char* kOperators[] = {
    "all_reduce_packet", "all_reduce_one_shot", "all_reduce_two_shot",
    "all_reduce_ring",   "ag_gemm_push",        "gemm_rs",
    "ag_gemm",           "gemm_rs_copy"};
constexpr std::size_t kShapesOfEach = 2;

std::vector<CheckCase> cases(const ProcessesOptions& options) {
  std::vector<CheckCase> all = catalog_cases(options.ranks), some;
  if (!options.only.empty()) {
    for (CheckCase& c : all) {
      if (c.label.find(options.only) != std::string::npos) some.push_back(std::move(c));
    }
    if (some.empty()) throw UserError(fmt::format("no case has '{}'", options.only));
    return some;
  }
  for (const char* name : kOperators) {
    std::size_t count = 0;
    for (const CheckCase& c : all) {
      bool is_of_it = c.label.rfind(fmt::format("{} ", name), 0) == 0;
      if (is_of_it && count++ < kShapesOfEach) some.push_back(c);
    }
    STRETTO_CHECK(count > 0, fmt::format("the catalog has no {}", name));
  }
  return some;
}

// ---- One rank.

class RankOfProcesses {
 public:
  explicit RankOfProcesses(const ProcessesOptions& options)
      : options_(options),
        host_({.bootstrap = bootstrap(), .timeout = kHostTimeout}),
        rank_(host_.local_rank()),
        gpus_(rank_, {.device = options.one_device ? 0 : -1,
                      .share_devices = options.one_device,
                      .timeout = kKernelTimeout}) {}

  // Whether all went well.
  bool work();
  bool death();

 private:
  static BootstrapAddress bootstrap() {
    auto at = bootstrap_address_of_environment();
    if (!at) throw UserError("processes --part: no RANK and WORLD_SIZE");
    return *at;
  }
  // The first rank says what went well, every one what did not.
  bool say(const std::string& what, const std::string& error) const {
    if (rank_.index() == 0 || !error.empty()) {
      fmt::print("{:6} {}{}{}\n", error.empty() ? "ok" : "FAILED", what, error.empty() ? "" : ": ",
                 error.empty() ? "" : fmt::format("rank {}: {}", rank_.index(), error));
      std::fflush(stdout);
    }
    return error.empty();
  }
  std::string refuses_other_sizes();
  std::string memory_comes_and_goes();

  ProcessesOptions options_;
  World host_;
  Rank& rank_;
  GpuWorld gpus_;
};

std::string RankOfProcesses::refuses_other_sizes() {
  try {
    gpus_.allocate(std::size_t{1} << (20 + rank_.index() % 2));
  } catch (const UserError&) {
    return "";
  }
  return "no UserError";
}

// More than a GPU has, bit by bit.
std::string RankOfProcesses::memory_comes_and_goes() {
  constexpr int kRounds = 60;
  constexpr std::size_t kBytes = std::size_t{4} << 30;
  for (int i = 0; i < kRounds; ++i) {
    SymmetricGpuMemory memory = gpus_.allocate(kBytes);
    auto right = static_cast<std::size_t>((rank_.index() + 1) % options_.ranks);
    gpus_.stream(rank_.index()).fill_bytes(memory.on[right].address() + kBytes - 1, 1, 1);
    gpus_.meet();
  }
  return "";
}

bool RankOfProcesses::work() {
  bool well = say("sizes that differ are refused", refuses_other_sizes());
  std::string pieces = "240 GiB of memory in 60 pieces, one after the other";
  well = say(pieces, memory_comes_and_goes()) && well;
  std::vector<CheckCase> all = cases(options_);
  for (const CheckCase& c : all) {
    GpuRunOptions run{.seed = options_.seed, .waiver = {}};
    if (!say(c.label, run_gpu_cases(gpus_, c.make(options_.seed), run).found)) return false;
  }
  for (const CheckCase& c : all) {
    GpuRunOptions run{.launches = 4, .back_to_back = 50, .seed = options_.seed, .waiver = {}};
    auto begin = Clock::now();
    std::string error = run_gpu_cases(gpus_, c.make(options_.seed), run).found;
    std::chrono::duration<double> took = Clock::now() - begin;
    std::string what =
        fmt::format("{}, 200 launches, {:.1f} s with loading", c.label, took.count());
    if (!say(what, error)) return false;
  }
  return well;
}

// The last rank ends with a launch under way; the others' kernels wait for it.
bool RankOfProcesses::death() {
  OpCase c = cases(options_).front().make(options_.seed).front();
  Lowered lowered = lower(c.program);
  const GpuTarget gpu = gpus_.target();
  std::unique_ptr<Executable> executable =
      load(prove(lowered, {.gpu = gpu}), gpus_, generate(lowered, {.target = gpu}));
  GpuCaseMemory memory(gpus_, c);
  std::shared_ptr<Launch> launches = executable->prepare(memory.args());
  int victim = options_.ranks - 1;
  auto last = Clock::now(), end = last + 3 * kKernelTimeout;
  std::string heard;
  try {
    for (int i = 0; Clock::now() < end; ++i) {
      launches->run(memory.extents());
      if (rank_.index() == victim && i == kLaunchesBeforeDeath) ::raise(SIGKILL);
      executable->wait();
      last = Clock::now();
    }
  } catch (const Fault& fault) {
    heard = fault.what();
  }
  auto ms = std::chrono::duration_cast<milliseconds>(Clock::now() - last);
  bool named = heard.find(fmt::format("rank {} died", victim)) != std::string::npos;
  std::string error;
  if (!named) error = heard.empty() ? "no Fault" : heard;
  if (error.empty() && ms > kKernelTimeout / 2) error = "that took a deadline";
  return say(fmt::format("the killed rank is named after {} ms: {}", ms.count(), heard), error);
}

// ---- The command that starts them.

bool start_part(const ProcessesOptions& options, const std::string& part, int num_well) {
  Fd report(::memfd_create("gpu_bench processes", 0));  // inherited
  if (!report) throw UserError("no descriptor left");
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                      "--seed",
                                      std::to_string(options.seed),
                                      "processes",
                                      "--ranks",
                                      std::to_string(options.ranks),
                                      "--part",
                                      part,
                                      "--report",
                                      std::to_string(report.get())};
  if (options.one_device) command.push_back("--one-device");
  if (!options.only.empty()) command.insert(command.end(), {"--only", options.only});
  std::fflush(stdout);
  int status = launch_processes(
      {.num_processes = options.ranks, .command = command, .grace = milliseconds(30'000)});
  int well = 0;
  for (int r = 0; r < options.ranks; ++r) {
    char byte = 0;
    well += ::pread(report.get(), &byte, 1, r) == 1 && byte == kWell ? 1 : 0;
  }
  int expected = part == "work" ? 0 : 128 + SIGKILL;
  bool ok = status == expected && well == num_well;
  fmt::print("{:6} {}: {} of {} ranks ended well, exit status {}\n", ok ? "ok" : "FAILED", part,
             well, num_well, status);
  return ok;
}

// Of processes that have ended nothing is left.
bool memory_is_back(const cuda::Device& device, std::size_t free_before) {
  constexpr std::size_t kSlack = std::size_t{64} << 20;
  constexpr int kLooks = 50;
  std::size_t now = 0;
  for (int i = 0; i < kLooks && now + kSlack < free_before; ++i) {
    if (i > 0) std::this_thread::sleep_for(milliseconds(100));
    now = device.memory().free_bytes;
  }
  bool ok = now + kSlack >= free_before;
  fmt::print("{:6} {} MiB of GPU 0 were free before, {} are now\n", ok ? "ok" : "FAILED",
             free_before >> 20, now >> 20);
  return ok;
}

}  // namespace

int run_processes_part(const ProcessesOptions& options) {
  ::alarm(kLongestPartSeconds);
  RankOfProcesses rank(options);
  bool well = options.part == "work" ? rank.work() : rank.death();
  auto at = static_cast<off_t>(bootstrap_address_of_environment()->rank);
  if (well && options.report >= 0) well = ::pwrite(options.report, &kWell, 1, at) == 1;
  return well ? 0 : 1;
}

ProcessesResult check_processes(const ProcessesOptions& options) {
  auto begin = Clock::now();
  cuda::Device device(0);
  std::vector<LabelledProgram> programs;
  for (const CheckCase& c : cases(options)) programs.push_back({c.label, c.program()});
  compile_ahead(programs);
  std::size_t free_before = device.memory().free_bytes;
  ProcessesResult r{.ranks = options.ranks, .one_device = options.one_device};
  r.work = start_part(options, "work", options.ranks);
  r.death = start_part(options, "death", options.ranks - 1);
  r.memory_back = memory_is_back(device, free_before);
  for (auto [well, what] :
       {std::pair{r.work, "work"}, {r.death, "death"}, {r.memory_back, "memory"}}) {
    if (!well) r.error += fmt::format("{}{}", r.error.empty() ? "" : ", ", what);
  }
  r.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return r;
}

std::string ProcessesResult::to_string() const {
  return fmt::format("{:6} {} processes{}, {:.0f} s{}", error.empty() ? "ok" : "FAILED", ranks,
                     one_device ? " on one GPU" : "", seconds, error.empty() ? "" : ": " + error);
}

Json ProcessesResult::to_json() const {
  Json out = {{"ranks", ranks}, {"one_device", one_device},   {"work", work},
              {"death", death}, {"memory_back", memory_back}, {"seconds", seconds}};
  if (!error.empty()) out["error"] = error;
  return out;
}

}  // namespace stretto::bench
