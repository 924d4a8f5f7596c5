// Programs that run on the ranks' CPUs.
#pragma once

#include "executable.h"
#include "stretto/executor/executor.h"

namespace stretto::python {

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(std::shared_ptr<Session> session, int rank, const CompiledProgram& compiled,
                const std::vector<bool>& staged);

  void launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
              const std::string& said, std::uintptr_t stream) override;

 private:
  Rank& make_ready();  // collective

  LaunchArgs args_;
  Instance instance_;
};

}  // namespace stretto::python
