// The subcommands of gpu_bench: each runs what its settings ask for, prints it, and writes the
// JSON. The command line is in gpu_bench.cc.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu/harness/compile_ahead.h"
#include "bench/gpu/prediction/refit.h"
#include "bench/gpu/products/gemm_shapes.h"
#include "bench/gpu/worlds/processes.h"

namespace stretto::bench {

struct Settings {
  std::string commit, driver, out;  // for the JSON
  std::uint64_t seed = std::random_device{}();
  std::string only;
  std::string traces;                            // a folder
  std::int64_t size = 0;                         // of loops that are cubes
  bool held_out = false;                         // loops
  std::int64_t tokens = 0, hidden = 0, ffn = 0;  // ep-moe, instead of the models'
  int launches = 3, back_to_back = 1, rounds = 1, world_size = 1;
  GemmShape shape{.label = "gemm", .m = 8192, .n = 8192, .k = 8192};
  std::vector<std::string> configs;
  std::string dtype = "bf16";
  int tp = 4;
  bool quick = false, graph = false, proof = false, sweep = false, profile = false;
  int one_of = 1;                                                           // catalog
  bool plain = false, delays = false, early = false, compile_only = false;  // catalog
  bool swallow = false;                                                     // enqueue
  bool list = false;                                                        // lot, routings
  int samples = 20;
  int count = 96;                   // shapes of lot
  double warmup_ms = 400;           // programs; GPUs that have rested are faster for a while
  int rest_ms = 300;                // programs, before each: else what ran before it sets its clock
  std::vector<int> ranks = {1, 2};  // predict-points
  std::vector<std::string> shapes;  // predict-points, instead of its list
  std::string file, calibrated;     // points
  RefitOptions refit;
};

// Each returns the process's exit status.
int run_compile(const Settings& s);
// A line for each kernel.
int compile_programs(const std::vector<LabelledProgram>& programs, bool proof);
int run_gemms(const Settings& s, const std::vector<GemmShape>& shapes);
int run_fp8(const Settings& s);
int run_loops(const Settings& s);
int run_overlap(const Settings& s);
int run_moe(const Settings& s);
int run_routings(const Settings& s);
int run_ep_moe(const Settings& s);
int run_sweep(const Settings& s);
int run_lot(const Settings& s);
int run_collectives(const Settings& s);
int run_exchange(const Settings& s);
int run_attention_suite(const Settings& s, bool checks);
int run_attention_ranks(const Settings& s);
int run_watchdog(const Settings& s);
int run_graph_fetch(const Settings& s);
int run_copies(const Settings& s);
int run_lines(const Settings& s);
// What `options` says of one rank, as the command starts itself, too.
int run_world_of_processes(const Settings& s, ProcessesOptions options);
int run_startup(const Settings& s);
int run_enqueue(const Settings& s);
int run_predict_points(const Settings& s);
int run_points(const Settings& s);
int run_refit(const Settings& s);
int run_calibrate(const Settings& s);

}  // namespace stretto::bench
