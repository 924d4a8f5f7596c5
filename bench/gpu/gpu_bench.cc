// Checks and measurements of the GPU backend on one GPU, apart from the command line so that it can
// be carried to a machine that has a GPU and nothing of ours (bench/gpu/bundle, bench/gpu/run).
//   gpu_bench compile                 every kernel of the rest; needs no GPU
//   gpu_bench check [--only TEXT]     small cases against the plain reference
//   gpu_bench catalog --ranks P       every operator, in every way that it can be launched
//     --early, of both                while the launch before still writes what it reads
//   gpu_bench gemm -m M -n N -k K     one product against cuBLASLt
//   gpu_bench gemm-suite [--tp P]     tensor-parallel shapes of three models, and 8192^3
//   gpu_bench gemm-fp8                products of fp8 factors with scales, against cuBLASLt
//   gpu_bench loops [--held-out]      loops that no operator has, against their rooflines
//   gpu_bench overlap --ranks P       fused operators against cuBLASLt and NCCL
//   gpu_bench sweep --ranks P         the same from 1 to 32768 rows, the unfused path a candidate
//   gpu_bench lot --ranks P           what is chosen without measuring, on shapes drawn by lot
//   gpu_bench moe --ranks P           fused layers of a mixture of experts, against a sequence
//   gpu_bench routings --ranks P      the same of routings by lot: skewed, empty, one-sided
//   gpu_bench ep-moe --ranks P        whole layers of spread experts, against launches of ours
//   gpu_bench grouped                 grouped products in configs around the default
//   gpu_bench padding --ranks P       rows of tiles without a token, of those models; needs no GPU
//   gpu_bench collectives --ranks P   collectives against NCCL
//   gpu_bench exchange --ranks P      dispatch and combine against NCCL's all-to-all
//   gpu_bench watchdog --ranks P      what deadlines of waits cost
//   gpu_bench graph-fetch             how copy engines that fetch get on in graphs; two GPUs
//   gpu_bench copies                  copy engines while a kernel holds every SM; two GPUs
//   gpu_bench lines --ranks P         whether what a warp stores to a peer arrives in whole lines
//   gpu_bench processes --ranks P     GPUs of a world of processes: results, and a killed rank
//   gpu_bench programs FILE...        programs of files, one process per GPU
//   gpu_bench startup --ranks P       cold and warm starts, and launches with a new m
//   gpu_bench enqueue --ranks P       the host's time and the driver's calls for a launch
//   gpu_bench predict-points -o FILE  predicted times of a list of operators; needs no GPU
//   gpu_bench points FILE             the same measured, and how far off the predictions are
//   gpu_bench refit FILE --machine M  predictions against what was measured before; needs no GPU
//   gpu_bench calibrate -o FILE       what this machine can do, for predictions
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/gpu/experts/grouped.h"
#include "bench/gpu/experts/padding.h"
#include "bench/gpu/harness/check.h"
#include "bench/gpu/products/gemm_shapes.h"
#include "bench/gpu/runs.h"
#include "bench/gpu/worlds/program_files.h"
#include "stretto/base/errors.h"

namespace stretto::bench {
namespace {

int run(int argc, char** argv) {
  Settings s;
  CLI::App app("checks and measurements of the GPU backend");
  app.require_subcommand(1);
  app.add_option("--commit", s.commit, "of this build, for the JSON");
  app.add_option("--driver", s.driver, "version of the display driver, for the JSON");
  app.add_option("--seed", s.seed, "of random inputs; default: a new one");

  auto* compile = app.add_subcommand("compile", "every kernel, without a GPU");
  auto* check = app.add_subcommand("check", "small cases against the plain reference");
  check->add_option("--launches", s.launches, "of each case")->check(CLI::PositiveNumber);
  auto* catalog_check = app.add_subcommand("catalog", "every operator on several GPUs");
  catalog_check->add_option("--ranks", s.world_size, "GPUs")->check(CLI::Range(1, 8));
  catalog_check->add_option("--launches", s.launches, "compared")->check(CLI::PositiveNumber);
  catalog_check->add_option("--back-to-back", s.back_to_back, "launches between comparisons")
      ->check(CLI::PositiveNumber);
  catalog_check->add_option("--rounds", s.rounds, "of all cases")->check(CLI::PositiveNumber);
  catalog_check->add_option("--only", s.only, "cases whose label contains this");
  catalog_check
      ->add_option("--one-of", s.one_of, "one of so many cases, drawn by STRETTO_TEST_SEED if set")
      ->check(CLI::PositiveNumber);
  catalog_check->add_flag("--plain", s.plain,
                          "no graphs, no second stream, no rank that does not come");
  catalog_check->add_flag("--delays", s.delays, "kernels that pause before waits and notifies");
  for (auto* command : {check, catalog_check}) {
    command->add_flag("--early", s.early,
                      "launches start before those that write their inputs have ended");
  }
  catalog_check->add_flag("--compile", s.compile_only, "the kernels alone; needs no GPU");
  auto* gemm = app.add_subcommand("gemm", "one product against cuBLASLt");
  gemm->add_option("-m,--m", s.shape.m)->check(CLI::PositiveNumber);
  gemm->add_option("-n,--n", s.shape.n)->check(CLI::PositiveNumber);
  gemm->add_option("-k,--k", s.shape.k)->check(CLI::PositiveNumber);
  auto* suite = app.add_subcommand("gemm-suite", "shapes of tensor-parallel models");
  for (auto* command : {compile, check}) {
    command->add_option("--only", s.only, "cases whose label contains this");
  }
  compile->add_flag("--proof", s.proof, "prove each program, too");
  for (auto* command : {compile, suite}) command->add_option("--tp", s.tp, "1, 2, 4 or 8");
  auto* fp8 = app.add_subcommand("gemm-fp8", "products of fp8 factors with scales");
  fp8->add_option("--config", s.configs, "instead of the list");
  fp8->add_option("--only", s.only, "shapes whose label and scaling contain this");
  for (auto* command : {compile, gemm, suite}) {
    command->add_flag("--quick", s.quick, "fewer configs");
    command->add_option("--config", s.configs,
                        "instead of the list: '256x256x64 stages 4 cluster 2 raster 8'");
    command->add_option("--dtype", s.dtype, "bf16 or f16");
  }
  for (auto* command : {gemm, suite, fp8}) {
    command->add_option("--samples", s.samples)->check(CLI::PositiveNumber);
    command->add_option("-o,--out", s.out, "JSON with every sample");
  }
  auto* loops = app.add_subcommand("loops", "loops that no operator has, against rooflines");
  loops->add_option("--only", s.only, "loops whose name contains this");
  loops->add_flag("--held-out", s.held_out, "the six that no pass was changed for");
  loops->add_option("--size", s.size, "rows, columns and depth of those that are cubes")
      ->check(CLI::PositiveNumber);
  loops->add_option("--samples", s.samples, "0: checked alone")->check(CLI::NonNegativeNumber);
  loops->add_option("-o,--out", s.out, "JSON with every sample");
  auto* overlap = app.add_subcommand("overlap", "fused operators against cuBLASLt and NCCL");
  auto* moe = app.add_subcommand("moe", "fused layers of mixtures of experts, against a sequence");
  auto* routings = app.add_subcommand("routings", "fused layers of experts, 16 routings by lot");
  auto* ep_moe = app.add_subcommand("ep-moe", "whole layers of spread experts, against launches");
  for (auto [name, size] :
       {std::pair{"--tokens", &s.tokens}, {"--hidden", &s.hidden}, {"--ffn", &s.ffn}}) {
    ep_moe->add_option(name, *size, "instead of the models'")->check(CLI::PositiveNumber);
  }
  GroupedOptions of_grouped;
  auto* grouped = app.add_subcommand("grouped", "grouped products in configs around the default");
  grouped->add_option("--only", of_grouped.only, "layers whose text contains this");
  grouped->add_flag("--compile", of_grouped.compile, "the kernels alone; needs no GPU");
  PaddingOptions of_padding;
  auto* padding = app.add_subcommand("padding", "rows of tiles without a token; needs no GPU");
  padding->add_option("--ranks", of_padding.world_size)->check(CLI::Range(1, 8));
  padding->add_option("--classes", of_padding.classes, "of the tables")->check(CLI::PositiveNumber);
  padding->add_option("--tile-rows", of_padding.tile_rows)->check(CLI::Range(2, 1024));
  padding->add_option("--routings", of_padding.routings, "random ones, of which the mean is taken")
      ->check(CLI::PositiveNumber);
  auto* sweep = app.add_subcommand("sweep", "fused operators from 1 to 32768 rows");
  auto* lot = app.add_subcommand("lot", "what is chosen without measuring, on shapes by lot");
  lot->add_option("--count", s.count, "shapes that the seed draws")->check(CLI::PositiveNumber);
  lot->add_option("--machine", s.calibrated, "what is predicted on; default: the built-in one");
  lot->add_flag("--compile", s.compile_only, "choices and their kernels alone; needs no GPU");
  lot->add_flag("--list", s.list, "the shapes alone, as JSON; needs no GPU");
  routings->add_flag("--compile", s.compile_only, "the kernels alone; needs no GPU");
  routings->add_flag("--list", s.list, "the routings alone; needs no GPU");
  auto* collectives = app.add_subcommand("collectives", "collectives against NCCL");
  auto* exchange = app.add_subcommand("exchange", "dispatch and combine against NCCL");
  for (auto* command : {gemm, suite, fp8, overlap}) {
    command->add_flag("--graph", s.graph, "measure all in captured graphs too");
  }
  compile
      ->add_option("--ranks", s.world_size,
                   "of moe, ep-moe; 2 and more: of overlap, collectives, exchange")
      ->check(CLI::Range(1, 8));
  compile->add_flag("--sweep", s.sweep, "those of sweep too");
  for (auto* command : {overlap, moe, routings, ep_moe, sweep, lot, collectives, exchange}) {
    const int fewest = command == moe || command == ep_moe ? 1 : 2;
    command->add_option("--ranks", s.world_size, "GPUs")->required()->check(CLI::Range(fewest, 8));
    if (command != sweep && command != lot) {
      command->add_flag("--quick", s.quick, "fewer shapes and configs");
    }
    if (command != lot) command->add_option("--only", s.only, "shapes whose text contains this");
    command->add_option("--samples", s.samples)->check(CLI::PositiveNumber);
    command->add_option("-o,--out", s.out, "JSON with every sample");
  }
  overlap->add_option("--config", s.configs,
                      "instead of the list: 'scatter=copy_engine channels=2 stagger=2'");
  for (auto* command : {overlap, moe, ep_moe, exchange}) {
    command->add_option("--machine", s.calibrated, "predict each config on it; needs no GPU");
  }
  auto* attention_check = app.add_subcommand("attention-check", "small cases against fp64");
  auto* attention_suite = app.add_subcommand("attention-suite", "large cases, checked and timed");
  for (auto* command : {attention_check, attention_suite}) {
    command->add_option("--only", s.only, "cases whose label contains this");
  }
  attention_suite->add_option("--samples", s.samples)->check(CLI::PositiveNumber);
  attention_suite->add_option("-o,--out", s.out, "JSON with every sample");
  for (auto* command : {gemm, fp8, loops, moe, attention_suite}) {
    command->add_flag("--profile", s.profile, "one launch of each between marks for ncu, no times");
  }
  auto* attention_ranks = app.add_subcommand("attention-ranks", "attention over several GPUs");
  attention_ranks->add_option("--ranks", s.world_size, "GPUs")->required()->check(CLI::Range(2, 8));
  attention_ranks->add_option("--only", s.only, "rows whose label contains this");
  attention_ranks->add_option("--samples", s.samples)->check(CLI::PositiveNumber);
  attention_ranks->add_option("-o,--out", s.out, "JSON with every sample");
  for (auto* command : {moe, routings, ep_moe, exchange, attention_ranks}) {
    command->add_option("--traces", s.traces, "folder: what was timed once more, with the recorder")
        ->check(CLI::ExistingDirectory);
  }
  auto* watchdog = app.add_subcommand("watchdog", "kernels with and without deadlines of waits");
  watchdog->add_option("--ranks", s.world_size, "GPUs")->required()->check(CLI::Range(2, 8));
  watchdog->add_option("--only", s.only, "cases whose text contains this");
  watchdog->add_option("--samples", s.samples, "default: 200")->check(CLI::PositiveNumber);
  watchdog->add_option("-o,--out", s.out, "JSON with every sample");
  ProcessesOptions of_processes;
  auto* processes = app.add_subcommand("processes", "one process per GPU; kills one at the end");
  processes->add_option("--ranks", of_processes.ranks, "processes")->check(CLI::Range(2, 8));
  processes->add_flag("--one-device", of_processes.one_device, "all on GPU 0, taking turns");
  processes->add_option("--only", of_processes.only, "cases whose label contains this");
  processes->add_option("-o,--out", s.out, "JSON");
  processes->add_option("--part", of_processes.part, "of one rank, as the command starts itself");
  processes->add_option("--report", of_processes.report, "descriptor: where it says it went well");
  std::vector<std::string> program_files;
  bool is_part = false;
  auto* programs = app.add_subcommand("programs", "programs of files, one process per GPU");
  programs->add_option("files", program_files, "in the IR's text form")->required();
  programs->add_option("--ranks", s.world_size, "processes")->required()->check(CLI::Range(2, 8));
  programs->add_option("--samples", s.samples, "of each")->check(CLI::PositiveNumber);
  programs->add_option("--warmup", s.warmup_ms, "milliseconds of launches before the first timed")
      ->check(CLI::PositiveNumber);
  programs->add_option("--rest", s.rest_ms, "milliseconds without launches before those of a file")
      ->check(CLI::NonNegativeNumber);
  programs->add_option("-o,--out", s.out, "JSON with every sample");
  programs->add_flag("--part", is_part, "of one rank, as the command starts itself");
  auto* graph_fetch = app.add_subcommand("graph-fetch", "copy engines that fetch, in graphs");
  auto* copies = app.add_subcommand("copies", "copy engines while a kernel holds every SM");
  copies->add_option("--samples", s.samples)->check(CLI::PositiveNumber);
  auto* lines = app.add_subcommand("lines", "whether packets arrive in whole lines");
  lines->add_option("--ranks", s.world_size, "GPUs")->check(CLI::Range(2, 8));
  lines->add_option("-o,--out", s.out, "JSON");
  auto* startup = app.add_subcommand("startup", "cold and warm starts, and a new m");
  startup->add_option("--ranks", s.world_size, "GPUs")->check(CLI::Range(1, 8));
  auto* enqueue = app.add_subcommand("enqueue", "the host's part of launches");
  enqueue->add_option("--ranks", s.world_size, "GPUs")->check(CLI::Range(1, 8));
  enqueue->add_option("--samples", s.samples)->check(CLI::PositiveNumber);
  enqueue->add_flag("--swallow", s.swallow, "enqueue nothing: the host's own work alone");
  for (auto* command : {graph_fetch, copies, startup, enqueue}) {
    command->add_option("--only", s.only, "rows whose text contains this");
    command->add_option("-o,--out", s.out, "JSON");
  }
  auto* predict_points = app.add_subcommand("predict-points", "predicted times, without a GPU");
  predict_points->add_option("--ranks", s.ranks, "worlds")->delimiter(',')->capture_default_str();
  predict_points
      ->add_option("--shapes", s.shapes, "OP:MxN, MxNxK: every config of these, no list of its own")
      ->delimiter(',');
  predict_points->add_option("-o,--out", s.out, "JSON")->required();
  auto* points = app.add_subcommand("points", "predictions against measurements");
  points->add_option("file", s.file, "of predict-points, or of points")->required();
  points->add_option("--ranks", s.world_size, "of the points that are measured, and those of one")
      ->check(CLI::Range(1, 8));
  points->add_option("--only", s.only, "points whose text contains this");
  points->add_option("--samples", s.samples, "launches or graphs of each")
      ->check(CLI::PositiveNumber);
  points->add_option("-o,--out", s.out, "JSON with predicted and measured times");
  for (auto* command : {predict_points, points}) {
    command->add_option("--machine", s.calibrated,
                        "machine file; points: after calibration, beside the file's predictions");
  }
  auto* refit = app.add_subcommand("refit", "predictions against what was measured; needs no GPU");
  refit->add_option("file", s.file, "of points")->required();
  refit->add_option("--machine", s.calibrated, "that is predicted on, or fitted")->required();
  refit->add_option("--fit", s.refit.parameters, "paths into the machine file")->delimiter(',');
  refit->add_option("--rounds", s.refit.rounds, "of the fit")->check(CLI::Range(1, 100));
  refit->add_option("--only", s.refit.only, "points whose text contains this");
  refit->add_option("--most-rows", s.refit.most_rows, "leave out what has more");
  refit->add_option("--ranks", s.ranks, "worlds")->delimiter(',')->capture_default_str();
  refit->add_option("-o,--out", s.out, "machine file");
  auto* calibrate = app.add_subcommand("calibrate", "a machine file of this machine");
  calibrate->add_option("--ranks", s.world_size, "GPUs")->check(CLI::Range(1, 8));
  calibrate->add_option("-o,--out", s.out, "machine file")->required();
  CLI11_PARSE(app, argc, argv);
  if (watchdog->parsed() && watchdog->count("--samples") == 0) s.samples = 200;
  if (calibrate->parsed()) return run_calibrate(s);
  if (predict_points->parsed()) return run_predict_points(s);
  if (points->parsed()) return run_points(s);
  if (refit->parsed()) return run_refit(s);
  if (attention_check->parsed() || attention_suite->parsed()) {
    return run_attention_suite(s, attention_check->parsed());
  }
  if (attention_ranks->parsed()) return run_attention_ranks(s);
  if (fp8->parsed()) return run_fp8(s);
  if (overlap->parsed()) return run_overlap(s);
  if (moe->parsed()) return run_moe(s);
  if (routings->parsed()) return run_routings(s);
  if (ep_moe->parsed()) return run_ep_moe(s);
  if (grouped->parsed()) {
    of_grouped.seed = s.seed;
    return search_grouped(of_grouped) == 0 ? 0 : 1;
  }
  if (padding->parsed()) {
    of_padding.seed = s.seed;
    fmt::print("{}", padding_table(of_padding));
    return 0;
  }
  if (sweep->parsed()) return run_sweep(s);
  if (lot->parsed()) return run_lot(s);
  if (watchdog->parsed()) return run_watchdog(s);
  if (processes->parsed()) return run_world_of_processes(s, of_processes);
  if (programs->parsed()) return run_program_files(s, program_files, is_part);
  if (graph_fetch->parsed()) return run_graph_fetch(s);
  if (copies->parsed()) return run_copies(s);
  if (lines->parsed()) return run_lines(s);
  if (startup->parsed()) return run_startup(s);
  if (enqueue->parsed()) return run_enqueue(s);
  if (loops->parsed()) return run_loops(s);
  if (collectives->parsed()) return run_collectives(s);
  if (exchange->parsed()) return run_exchange(s);

  if (compile->parsed()) return run_compile(s);
  if (check->parsed() || catalog_check->parsed()) {
    CheckOptions options{.only = s.only,
                         .one_of = s.one_of,
                         .seed = s.seed,
                         .launches = s.launches,
                         .back_to_back = s.back_to_back,
                         .rounds = s.rounds,
                         .world_size = s.world_size,
                         .graphs = catalog_check->parsed() && !s.plain,
                         .streams = catalog_check->parsed() && !s.plain,
                         .stalls = catalog_check->parsed() && !s.plain,
                         .delays = s.delays,
                         .early = s.early};
    std::vector<CheckCase> cases =
        check->parsed() ? check_cases() : catalog_cases(options.world_size);
    if (s.compile_only) return compile_programs(check_programs(cases, options), s.proof);
    return run_checks(std::move(cases), options) == 0 ? 0 : 1;
  }
  return run_gemms(s, gemm->parsed() ? std::vector{s.shape} : tensor_parallel_shapes(s.tp));
}

}  // namespace
}  // namespace stretto::bench

int main(int argc, char** argv) try {
  return stretto::bench::run(argc, argv);
} catch (const stretto::Error& e) {
  fmt::print(stderr, "gpu_bench: {}\n", e.what());
  return 2;
}
