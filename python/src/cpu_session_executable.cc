#include "cpu_session_executable.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace stretto::python {

CpuSessionExecutable::CpuSessionExecutable(std::shared_ptr<Session> session, int rank,
                                           const Proved& compiled, const std::vector<bool>& staged,
                                           const std::string& said)
    : SessionExecutable(std::move(session), rank, compiled, staged, MemoryKind::kHost, said),
      tables_(input_tables()) {
  make_ready(compiled);
}

// Ranks that make different ones ready may allocate alike; then each would have what others lack.
void CpuSessionExecutable::make_ready(const Proved& compiled) {
  Rank& own = session().rank(rank());
  const Call& call = call_at_bounds();
  if (own.size() > 1) own.agree(call.name + " for the first time", ~call.content);
  make_staging();
  loaded_ = load(compiled, own);
}

InputTables CpuSessionExecutable::input_tables() const {
  std::vector<std::size_t> tensors;
  for (const Argument& argument : arguments_) tensors.push_back(argument.tensor);
  return InputTables(program(), rank(), tensors);
}

void CpuSessionExecutable::require_own(std::span<std::byte* const> args,
                                       std::span<const std::int64_t> extents,
                                       const std::string& said) const {
  std::string call = said.empty() ? program().name : said.substr(0, said.find('('));
  for (std::size_t i = 0; i < args.size(); ++i) {
    const Tensor& t = program().tensors[arguments_[i].tensor];
    if (arguments_[i].passing == Passing::kStaged) continue;
    if (reinterpret_cast<std::uintptr_t>(args[i]) % size_bytes(t.dtype) == 0) continue;
    throw UserError(fmt::format("{}: tensor '{}' is not aligned", call, t.name));
  }
  tables_.require(call, args, extents);
}

// All have agreed on the launch, so what ends it here alone ends it for the others too.
void CpuSessionExecutable::run(Rank& own, Launch& launch, std::span<const std::int64_t> extents,
                               const std::string& program) {
  try {
    launch.run(extents);
  } catch (const Fault&) {
    throw;
  } catch (const std::exception& error) {
    if (own.size() == 1 || own.aborted()) throw;
    try {
      own.raise_fault({.program = program,
                       .role = "launch",
                       .rank = own.index(),
                       .waited_for = own.index(),
                       .reason = fmt::format("rank {} failed: {}", own.index(), error.what())});
    } catch (const Fault&) {
    }
    throw;
  }
}

void CpuSessionExecutable::launch(std::span<std::byte* const> args,
                                  std::span<const std::int64_t> extents, const std::string& said,
                                  std::uintptr_t) {
  Rank& own = session().rank(rank());  // refuses a finalized session
  const Call& call = call_with(args, extents, said);
  Launch& launch = launch_on(args);
  require_own(args, extents, said);
  if (own.size() > 1) own.agree(call.name, call.content);
  count_use();
  for (const Staging& s : staging_) {
    if (s.copied_in && s.bytes > 0) std::memcpy(s.memory->data(), args[s.arg], s.bytes);
  }
  run(own, launch, extents, program().name);
  for (const Staging& s : staging_) {
    if (s.copied_out && s.bytes > 0) std::memcpy(args[s.arg], s.memory->data(), s.bytes);
  }
}

}  // namespace stretto::python
