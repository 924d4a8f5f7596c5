// Programs that run on the ranks' CPUs.
#pragma once

#include "session_executable.h"
#include "tables.h"

namespace stretto::python {

class CpuSessionExecutable final : public SessionExecutable {
 public:
  CpuSessionExecutable(std::shared_ptr<Session> session, int rank, const Proved& compiled,
                       const std::vector<bool>& staged, const std::string& said);

  void launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
              const std::string& said, std::uintptr_t stream) override;

 private:
  void make_ready(const Proved& compiled);  // collective
  InputTables input_tables() const;
  // Of what only this rank sees. UserError.
  void require_own(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                   const std::string& said) const;
  static void run(Rank& own, Launch& launch, std::span<const std::int64_t> extents,
                  const std::string& program);

  InputTables tables_;
};

}  // namespace stretto::python
