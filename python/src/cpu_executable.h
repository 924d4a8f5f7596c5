// Programs that run on the ranks' CPUs.
#pragma once

#include "executable.h"
#include "stretto/executor/executor.h"
#include "tables.h"

namespace stretto::python {

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(std::shared_ptr<Session> session, int rank, const Proved& compiled,
                const std::vector<bool>& staged, const std::string& said);

  void launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
              const std::string& said, std::uintptr_t stream) override;

 private:
  Rank& make_ready();  // collective
  InputTables input_tables() const;
  // Of what only this rank sees. UserError.
  void require_own(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                   const std::string& said) const;
  void run(Rank& own);

  LaunchArgs args_;
  Instance instance_;
  InputTables tables_;
};

}  // namespace stretto::python
