#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "apps/commands.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/own_files.h"
#include "stretto/base/say.h"
#include "stretto/ops/calibrate/calibrate_gpus.h"
#include "stretto/ops/choose/calibrated_machine.h"
#include "stretto/runtime/atomic_file.h"

namespace stretto {
namespace {

struct CalibrateCommand {
  std::string device = "cuda", output;
  int ranks = 1, rounds = 8;
  bool json = false;
};

void calibrate(const CalibrateCommand& options) {
  std::filesystem::path path = options.output.empty() ? calibration_path(options.ranks)
                                                      : std::filesystem::path(options.output);
  if (options.output.empty()) {
    require_own(path, "STRETTO_CACHE_DIR");
    make_own_folder(path.parent_path());  // where that fails the next line says why
  }
  check_writable(path);
  GpuWorld world({.size = options.ranks});
  GpuCalibration found = calibrate_gpus(
      world, {.name = fmt::format("{} x{}", world.device(0).properties().name, options.ranks),
              .start = predict::find_machine(builtin_machine_of(options.ranks)),
              .rounds = options.rounds,
              .progress = [](const std::string& line) { say("{}\n", line); }});
  Json machine = found.to_json();
  AtomicFile file(path);
  file.write(machine.dump(1) + "\n");
  file.commit();
  if (options.json) {
    fmt::print("{}\n", to_line(machine));
  } else {
    fmt::print("{}: mean error of the training runs {:.3f}\n", path.string(), found.error);
  }
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  auto options = std::make_shared<CalibrateCommand>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure this machine's GPUs: what predictions and choices read");
  command->add_option("--device", options->device, "what to measure")
      ->check(CLI::IsMember({"cuda"}))
      ->envname("STRETTO_DEVICE")
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "GPUs")
      ->check(CLI::Range(1, 8))
      ->envname("STRETTO_RANKS")
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "of the fit")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  command->add_option("-o,--output", options->output,
                      "machine file; default: where bench and predict look for it");
  command->add_flag("--json", options->json, "the machine on stdout, too");
  command->callback([options] { calibrate(*options); });
}

}  // namespace stretto
