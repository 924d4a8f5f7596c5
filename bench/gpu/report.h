// What a subcommand of gpu_bench finds: lines, and JSON with the machine that it was found on.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "bench/gpu/runs.h"
#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"

namespace stretto::bench {

// The members of a result's JSON that say on what, when and with which libraries it was measured.
Json machine_json(const GpuWorld& world, const Settings& s);
// Now, as results have it.
std::string date_text();

// Printed and counted as it comes, and written after every result, so that a run that is cut short
// leaves what it measured.
class Report {
 public:
  // Of the world's machine; `compared` are keys of what is printed with it: "cublaslt", "nccl".
  Report(const GpuWorld& world, const Settings& s, const std::vector<const char*>& compared = {});

  // Appends to the JSON's list `key`.
  template <typename Result>
  void keep(const char* key, const Result& r) {
    fmt::print("{}\n", r.to_string());
    std::fflush(stdout);
    if constexpr (requires { r.error.empty(); }) failed_ += !r.error.empty();
    json_[key].push_back(r.to_json());
    write();
  }
  void write() const;
  Json& json() { return json_; }  // for what stands beside the lists

  // The last line, "NAME: FOUND, 0 failed (seed 1)", and the process's exit status.
  int finish(const char* name, const std::string& found = "") const;
  int status() const { return failed_ == 0 ? 0 : 1; }

 private:
  const Settings& settings_;
  Json json_;
  int failed_ = 0;
};

}  // namespace stretto::bench
