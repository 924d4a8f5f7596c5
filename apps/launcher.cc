#include "apps/launcher.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/commands.h"
#include "stretto/base/errors.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/processes/launch.h"

namespace stretto {
namespace {

// This process's own command line, with the program's file in place of its name.
std::vector<std::string> own_command() {
  errno = 0;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> command;
  for (std::string argument; std::getline(file, argument, '\0');) command.push_back(argument);
  if (command.empty()) {
    throw UserError(fmt::format("cannot read /proc/self/cmdline, which tells what to start: {}",
                                std::strerror(errno)));
  }
  command.at(0) = std::filesystem::read_symlink("/proc/self/exe");
  return command;
}

// So that the error comes once, not from every process.
void require_gpus(int ranks) {
  cuda::driver();
  if (int found = cuda::num_devices(); found < ranks) {
    throw DeviceError(fmt::format("{} ranks, each a process with its own GPU: this machine has {}",
                                  ranks, found));
  }
}

void run(const LaunchOptions& options) {
  int code = launch_processes(options);
  if (code != 0) throw CommandFailed{code};
}

}  // namespace

void add_launcher_option(CLI::App* command, LauncherOptions& options) {
  command
      ->add_option("--launcher", options.launcher,
                   "ranks as threads of this process (GPUs: driven by it), or one process each")
      ->check(CLI::IsMember({"threads", "processes"}))
      ->envname("STRETTO_LAUNCHER")
      ->capture_default_str();
}

bool ran_as_processes(const LauncherOptions& options, int ranks, Target target) {
  if (!options.processes() || bootstrap_address_of_environment()) return false;
  if (target == Target::kCuda) require_gpus(ranks);
  run({.num_processes = ranks, .command = own_command()});
  return true;
}

std::shared_ptr<World> make_world(const LauncherOptions& options, int ranks,
                                  const OwnWorldOptions& world) {
  if (!options.processes()) {
    return std::make_shared<World>(
        WorldOptions{.size = ranks, .timeout = world.timeout, .record = world.record});
  }
  end_together_on_broken_pipe();
  std::optional<BootstrapAddress> bootstrap = bootstrap_address_of_environment();
  if (!bootstrap) throw UserError("WORLD_SIZE is not set");
  if (bootstrap->size != ranks) {
    throw UserError(
        fmt::format("the command is for {} ranks, WORLD_SIZE says {}", ranks, bootstrap->size));
  }
  return std::make_shared<World>(ProcessWorldOptions{
      .bootstrap = *bootstrap, .timeout = world.timeout, .record = world.record});
}

void add_launch_command(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  auto grace_ms = std::make_shared<int>(static_cast<int>(options->grace.count()));
  CLI::App* command = app.add_subcommand(
      "launch", "Run a command once per rank, with the environment of a world of processes");
  command->add_option("-n,--ranks", options->num_processes, "how many processes")
      ->check(CLI::Range(1, World::kMaxWorldSize))
      ->envname("STRETTO_RANKS")
      ->required();
  command->add_option("--grace-ms", *grace_ms, "time for the others to end after one has failed")
      ->check(CLI::Range(0, 3'600'000))
      ->capture_default_str();
  command->add_option("command", options->command, "after --: the command and its arguments")
      ->required();
  command->callback([options, grace_ms] {
    // As it was written: CLI11 takes an argument '[1,2]' for a list of two.
    std::vector<std::string> all = own_command();
    auto dashes = std::find(all.begin(), all.end(), "--");
    if (dashes != all.end()) options->command.assign(dashes + 1, all.end());
    options->grace = std::chrono::milliseconds(*grace_ms);
    run(*options);
  });
}

}  // namespace stretto
