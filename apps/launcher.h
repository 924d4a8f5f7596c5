// Commands that run on several ranks may run one process per rank: `--launcher processes`. Such a
// command starts itself again, once per rank, unless torchrun or `stretto launch` has done so.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "stretto/base/env.h"
#include "stretto/ops/operator/target.h"
#include "stretto/runtime/world.h"

namespace CLI {
class App;
}

namespace stretto {

struct LauncherOptions {
  std::string launcher = "threads";
  bool processes() const { return launcher == "processes"; }
};

void add_launcher_option(CLI::App* command, LauncherOptions& options);

// True where this process has now run the whole command as `ranks` processes of its own, all well;
// CommandFailed otherwise. False where the command is to go on here. DeviceError where the target
// is GPUs and there are fewer.
bool ran_as_processes(const LauncherOptions& options, int ranks, Target target);

struct OwnWorldOptions {
  bool record = false;
  std::chrono::milliseconds timeout = env_timeout();
};

// The world of `ranks` ranks to run on. UserError where WORLD_SIZE says another number.
std::shared_ptr<World> make_world(const LauncherOptions& options, int ranks,
                                  const OwnWorldOptions& world = {});

}  // namespace stretto
