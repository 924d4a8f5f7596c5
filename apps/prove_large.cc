#include "apps/prove_large.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.h"
#include "apps/program_source.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/say.h"
#include "stretto/compiler.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/proof/prove.h"

namespace stretto {
namespace {

using nlohmann::json;


// The operator's layer of a large model, with 4096 and 16,384 rows where it has about as many, and
// long sequences where ranks share one.
std::vector<OpShape> large_shapes(const OperatorInfo& op, int world_size) {
  OpShape shape = op.large;
  shape.world_size = world_size;
  shape.target = Target::kCuda;
  if (shape.m < 1024) return {shape};
  std::vector<std::int64_t> rows = {4096, 16384};
  std::string_view name = op.name;
  for (std::string_view long_one :
       {"attention", "sequence_attention", "ring_attention", "token_ring"}) {
    if (name == long_one) rows.push_back(65536);
  }
  std::vector<OpShape> shapes;
  for (std::int64_t m : rows) {
    shapes.push_back(shape);
    shapes.back().m = m;
  }
  return shapes;
}

json not_complete(const std::string& where, const std::string& why) {
  json missing = {{"what", kMissingLimit}, {"where", where}, {"expression", why}};
  return {{"verdict", name(Verdict::kNotComplete)},
          {"missing", json::array({missing})},
          {"cases", 0},
          {"events", 0}};
}

json proof_of(const OperatorInfo& op, const OpShape& shape, bool fixed_sizes) {
  try {
    ProofResult result = prove(lower(op.program(shape)).program(), {.bounds_only = fixed_sizes});
    json out = {{"verdict", name(result.verdict)},
                {"missing", json::array()},
                {"cases", result.stats.cases},
                {"events", result.stats.events},
                {"seconds", result.stats.seconds}};
    for (const Missing& m : result.missing) {
      out["missing"].push_back(
          {{"what", m.what}, {"where", m.where}, {"expression", m.expression}});
    }
    if (result.rejected()) out["report"] = result.report;
    return out;
  } catch (const std::exception& e) {
    return not_complete("an error", e.what());
  }
}

// In the child: the result goes to `to`.
[[noreturn]] void prove_and_exit(const OperatorInfo& op, const OpShape& shape,
                                 const LargeOptions& options, int to) {
  // At the first it gets a signal that says so.
  auto limit_s = static_cast<rlim_t>(options.limit_s);
  rlimit limit{limit_s, limit_s + 5};
  setrlimit(RLIMIT_CPU, &limit);
  rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::string text = to_line(proof_of(op, shape, options.fixed_sizes));
  for (std::size_t done = 0; done < text.size();) {
    ssize_t n = write(to, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) _exit(1);
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  _exit(0);
}

// Of a process that may have ended.
long resident_mb(pid_t process) {
  std::ifstream from(fmt::format("/proc/{}/statm", process));
  long all = 0, resident = 0;
  from >> all >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024) / 1024;
}

// One program of the table, while it is proved.
struct Watched {
  pid_t process = 0;
  int from = -1;  // what it writes
  std::string label;
};

// What it has written, to the end. Where it takes more than its limits, it is ended: then why.
std::pair<std::string, std::optional<std::string>> watch(const Watched& one,
                                                         const LargeOptions& options) {
  using std::chrono::seconds;
  using std::chrono::steady_clock;
  std::string text;
  char buffer[4096];
  std::optional<std::string> why;
  steady_clock::time_point begin = steady_clock::now(), say_next = begin + seconds(2);
  for (;;) {
    pollfd ready{.fd = one.from, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, /*timeout_ms=*/50) > 0) {
      ssize_t n = read(one.from, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return {text, why};
      text.append(buffer, static_cast<std::size_t>(n));
      continue;
    }
    steady_clock::time_point now = steady_clock::now();
    long mb = resident_mb(one.process);
    if (mb > options.limit_mb) why = fmt::format("{} MB of memory, the limit", options.limit_mb);
    // One that gets no CPU time has no end either.
    seconds longest(20L * options.limit_s);
    if (now - begin > longest) {
      why = fmt::format("{} s on the clock, the time limit of one that gets little CPU time",
                        longest.count());
    }
    if (why) kill(one.process, SIGKILL);
    if (now < say_next) continue;
    auto so_far = std::chrono::duration_cast<seconds>(now - begin).count();
    say("stretto: proving {}: {} s, {} MB so far\n", one.label, so_far, mb);
    say_next += seconds(10);
  }
}

json measured(const OperatorInfo& op, const OpShape& shape, const std::string& progress,
              const LargeOptions& options) {
  using std::chrono::steady_clock;
  const steady_clock::time_point begin = steady_clock::now();
  int ends[2];
  if (pipe(ends) != 0) throw UserError(fmt::format("prove: pipe: {}", std::strerror(errno)));
  pid_t child = fork();
  if (child < 0) throw UserError(fmt::format("prove: fork: {}", std::strerror(errno)));
  if (child == 0) {
    close(ends[0]);
    prove_and_exit(op, shape, options, ends[1]);
  }
  close(ends[1]);
  std::string label = fmt::format("{} {}", op.name, to_string(shape));
  auto [text, why] = watch({.process = child, .from = ends[0], .label = progress + label}, options);
  close(ends[0]);
  int status = 0;
  rusage used{};
  while (wait4(child, &status, 0, &used) < 0 && errno == EINTR) {
  }
  json result = json::parse(text, nullptr, /*allow_exceptions=*/false);
  bool past_limit = WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU;
  if (!why && past_limit) why = fmt::format("{} s of CPU time, the limit", options.limit_s);
  if (!why && status != 0) why = fmt::format("its process ended with status {}", status);
  if (why || result.is_discarded())
    result = not_complete("of this run", why.value_or("it said nothing"));
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  result["label"] = label;
  if (!result.contains("seconds")) {  // of one that was ended: all that it had
    result["seconds"] = std::chrono::duration<double>(steady_clock::now() - begin).count();
  }
  result["cpu_seconds"] = seconds(used.ru_utime) + seconds(used.ru_stime);
  result["peak_mb"] = used.ru_maxrss / 1024;
  return result;
}

std::string all_missing(const json& r) {
  std::string text;
  for (const json& m : r["missing"]) {
    text += (text.empty() ? "" : ", ") + m["what"].get<std::string>();
  }
  return text;
}

// At once: the whole run takes minutes.
void print_row(const json& r, bool as_json) {
  std::string label = r["label"];
  if (as_json) {
    fmt::print("{}\n", to_line(r));
  } else {
    fmt::print("| {} | {} | {} | {} | {} | {:.2f} | {} |\n", label, r["verdict"].get<std::string>(),
               all_missing(r), r.value("cases", 0), r.value("events", 0),
               r["cpu_seconds"].get<double>(), r["peak_mb"].get<long>());
  }
  std::fflush(stdout);
  for (const json& m : r["missing"]) {
    say("{}: not shown: {}\n", label,
        describe(Missing{.what = m["what"], .where = m["where"], .expression = m["expression"]}));
  }
  if (r.contains("report")) say("{}\n", r["report"].get<std::string>());
}

std::vector<int> world_sizes(const RankRange& ranks) {
  if (ranks.first == ranks.last) return {ranks.first};
  std::vector<int> sizes;
  for (int p : {1, 2, 4, 8}) {
    if (p >= ranks.first && p <= ranks.last) sizes.push_back(p);
  }
  if (!sizes.empty()) return sizes;
  throw UserError(
      fmt::format("--ranks {}..{}: --large looks at 1, 2, 4 and 8 ranks, or at one number",
                  ranks.first, ranks.last));
}

struct LargeProgram {
  const OperatorInfo* op;
  OpShape shape;
};

std::vector<LargeProgram> large_programs(const LargeOptions& options) {
  std::vector<LargeProgram> out;
  for (const OperatorInfo& op : catalog()) {
    if (!options.op.empty() && options.op != op.name) continue;
    for (int world_size : world_sizes(options.ranks)) {
      for (const OpShape& shape : large_shapes(op, world_size)) out.push_back({&op, shape});
    }
  }
  if (out.empty()) throw UserError(fmt::format("prove: --large: no operator '{}'", options.op));
  return out;
}

struct LargeTotals {
  std::size_t programs = 0;
  int complete = 0, not_complete = 0, rejected = 0;
  std::vector<double> times;
  long most_mb = 0;

  void add(const json& r) {
    ++programs;
    rejected += r["verdict"] == name(Verdict::kRejected) ? 1 : 0;
    not_complete += r["verdict"] == name(Verdict::kNotComplete) ? 1 : 0;
    complete = static_cast<int>(programs) - rejected - not_complete;
    times.push_back(r["cpu_seconds"]);
    most_mb = std::max(most_mb, r["peak_mb"].get<long>());
  }

  void print(bool as_json) {
    std::sort(times.begin(), times.end());
    double median = (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
    if (as_json) {
      json out = {{"programs", programs},         {"complete", complete},
                  {"not_complete", not_complete}, {"rejected", rejected},
                  {"median_cpu_seconds", median}, {"most_cpu_seconds", times.back()},
                  {"most_peak_mb", most_mb}};
      fmt::print("{}\n", to_line(out));
    } else {
      fmt::print(
          "{} programs: {} complete, {} not complete, {} rejected; CPU s: median {:.2f}, "
          "most {:.2f}; most MB {}\n",
          programs, complete, not_complete, rejected, median, times.back(), most_mb);
    }
  }
};

}  // namespace

void prove_large(const LargeOptions& options) {
  std::vector<LargeProgram> programs = large_programs(options);
  if (!options.json) {
    fmt::print("| program | verdict | missing | cases | events | CPU s | peak MB |\n");
    fmt::print("|---|---|---|---|---|---|---|\n");
  }
  LargeTotals totals;
  for (const auto& [op, shape] : programs) {
    std::string progress = fmt::format("{} of {}, ", totals.programs + 1, programs.size());
    json r = measured(*op, shape, progress, options);
    totals.add(r);
    print_row(r, options.json);
  }
  totals.print(options.json);
  if (totals.rejected > 0) {
    throw Rejected(fmt::format("{} of {} programs", totals.rejected, totals.programs));
  }
  if (totals.not_complete > 0) throw CommandFailed{kExitNotComplete};
}

}  // namespace stretto
