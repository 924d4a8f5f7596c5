#include "apps/prove_large.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
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

constexpr int kExitNotComplete = 5;  // docs/guide/errors.md

// The operator's layer of a large model, with 4096 and 16,384 rows where it has about as many, and
// long sequences where ranks share one.
std::vector<OpShape> large_shapes(const OperatorInfo& op, int world_size) {
  OpShape shape = op.large;
  shape.world_size = world_size;
  shape.target = Target::kCuda;
  if (shape.m < 1024) return {shape};
  std::vector<std::int64_t> rows = {4096, 16384};
  std::string_view name = op.name;
  if (name == "sequence_attention" || name == "ring_attention" || name == "token_ring") {
    rows.push_back(65536);
  }
  std::vector<OpShape> shapes;
  for (std::int64_t m : rows) {
    shapes.push_back(shape);
    shapes.back().m = m;
  }
  return shapes;
}

json not_complete(const std::string& why) {
  json missing = {{"what", "a limit of the proof"}, {"where", ""}, {"expression", why}};
  return {{"verdict", name(Verdict::kNotComplete)}, {"missing", json::array({missing})}};
}

json proof_of(const OperatorInfo& op, const OpShape& shape) {
  try {
    ProofResult result = prove(lower(op.program(shape)).program());
    json out = {{"verdict", name(result.verdict)},
                {"missing", json::array()},
                {"cases", result.stats.cases},
                {"events", result.stats.events}};
    for (const Missing& m : result.missing) {
      out["missing"].push_back(
          {{"what", m.what}, {"where", m.where}, {"expression", m.expression}});
    }
    if (result.rejected()) out["report"] = result.report;
    return out;
  } catch (const std::exception& e) {
    return not_complete(e.what());
  }
}

// In the child: the result goes to `to`.
[[noreturn]] void prove_and_exit(const OperatorInfo& op, const OpShape& shape, int limit_s,
                                 int to) {
  rlimit limit{static_cast<rlim_t>(limit_s), static_cast<rlim_t>(limit_s)};
  setrlimit(RLIMIT_CPU, &limit);
  rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::string text = to_line(proof_of(op, shape));
  for (std::size_t done = 0; done < text.size();) {
    ssize_t n = write(to, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) _exit(1);
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  _exit(0);
}

std::string read_all(int from) {
  std::string text;
  char buffer[4096];
  for (;;) {
    ssize_t n = read(from, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

json measured(const OperatorInfo& op, const OpShape& shape, int limit_s) {
  int ends[2];
  if (pipe(ends) != 0) throw UserError(fmt::format("prove: pipe: {}", std::strerror(errno)));
  pid_t child = fork();
  if (child < 0) throw UserError(fmt::format("prove: fork: {}", std::strerror(errno)));
  if (child == 0) {
    close(ends[0]);
    prove_and_exit(op, shape, limit_s, ends[1]);
  }
  close(ends[1]);
  std::string text = read_all(ends[0]);
  close(ends[0]);
  int status = 0;
  rusage used{};
  while (wait4(child, &status, 0, &used) < 0 && errno == EINTR) {
  }
  json result = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (result.is_discarded() || status != 0) {
    std::string why = WIFSIGNALED(status) && used.ru_utime.tv_sec + used.ru_stime.tv_sec >= limit_s
                          ? fmt::format("{} s of CPU time, the limit", limit_s)
                          : fmt::format("its process ended with status {}", status);
    result = not_complete(why);
  }
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  result["label"] = fmt::format("{} {}", op.name, to_string(shape));
  result["cpu_seconds"] = seconds(used.ru_utime) + seconds(used.ru_stime);
  result["peak_mb"] = used.ru_maxrss / 1024;
  return result;
}

// At once: the whole run takes minutes.
void print_row(const json& r, bool as_json) {
  std::string label = r["label"];
  if (as_json) {
    fmt::print("{}\n", to_line(r));
  } else {
    fmt::print("| {} | {} | {} | {} | {:.2f} | {} |\n", label, r["verdict"].get<std::string>(),
               r.value("cases", 0), r.value("events", 0), r["cpu_seconds"].get<double>(),
               r["peak_mb"].get<long>());
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

}  // namespace

void prove_large(const LargeOptions& options) {
  std::vector<double> times;
  int rejected = 0, not_complete = 0;
  std::vector<int> sizes = world_sizes(options.ranks);
  if (!options.json) {
    fmt::print("| program | verdict | cases | events | CPU s | peak MB |\n");
    fmt::print("|---|---|---|---|---|---|\n");
  }
  for (const OperatorInfo& op : catalog()) {
    if (!options.op.empty() && options.op != op.name) continue;
    for (int world_size : sizes) {
      for (const OpShape& shape : large_shapes(op, world_size)) {
        json r = measured(op, shape, options.limit_s);
        rejected += r["verdict"] == name(Verdict::kRejected) ? 1 : 0;
        not_complete += r["verdict"] == name(Verdict::kNotComplete) ? 1 : 0;
        times.push_back(r["cpu_seconds"]);
        print_row(r, options.json);
      }
    }
  }
  if (times.empty()) throw UserError(fmt::format("prove: --large: no operator '{}'", options.op));
  std::sort(times.begin(), times.end());
  double median = (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
  if (options.json) {
    json out = {{"programs", times.size()},
                {"not_complete", not_complete},
                {"rejected", rejected},
                {"median_cpu_seconds", median},
                {"most_cpu_seconds", times.back()}};
    fmt::print("{}\n", to_line(out));
  } else {
    fmt::print("{} programs: {} not complete, {} rejected; CPU s: median {:.2f}, most {:.2f}\n",
               times.size(), not_complete, rejected, median, times.back());
  }
  if (rejected > 0) throw Rejected(fmt::format("{} of {} programs", rejected, times.size()));
  if (not_complete > 0) throw CommandFailed{kExitNotComplete};
}

}  // namespace stretto
