// A compiled program made ready to run on one rank of a session, with the staging memory of the
// tensors that other ranks address but the caller keeps elsewhere. The one place that knows on
// which kind of device a launch runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "session.h"
#include "stretto/compiler.h"
#include "stretto/executor/executor.h"

namespace stretto::python {

// One rank's share of memory at the same offset on every rank; freed with the last owner.
class SymmetricMemory {
 public:
  // Collective; errors as Rank::allocate.
  SymmetricMemory(std::shared_ptr<Session> session, int rank, const std::string& name, DType dtype,
                  std::size_t elements);
  ~SymmetricMemory();
  SymmetricMemory(const SymmetricMemory&) = delete;
  SymmetricMemory& operator=(const SymmetricMemory&) = delete;

  const SymmetricBuffer& buffer() const { return buffer_; }
  std::byte* data() const { return data_; }

 private:
  std::shared_ptr<Session> session_;
  Rank& rank_;
  SymmetricBuffer buffer_;
  std::byte* data_ = nullptr;
};

class Executable {
 public:
  // Collective. `staged` has an entry for each tensor that is no buffer, in the program's order:
  // whether a symmetric tensor lives in ordinary memory and is copied. Every rank passes the same.
  Executable(std::shared_ptr<Session> session, int rank, const CompiledProgram& compiled,
             const std::vector<bool>& staged);
  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Collective. Addresses in the order of `staged`, each of a dense row-major array of the
  // program's bound shape. UserError for an address outside symmetric memory that was not said to
  // be staged, and on every rank, with nothing launched, where ranks launch different executables.
  void launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents);

  const Program& program() const { return instance_->program(); }

 private:
  struct Staging {
    std::size_t arg;
    bool copied_in, copied_out;
    std::size_t bytes;
    std::unique_ptr<SymmetricMemory> memory;
  };

  std::shared_ptr<Session> session_;
  int rank_;
  std::vector<std::size_t> tensors_;  // of each argument: its tensor in the program
  std::vector<bool> by_address_;      // of each argument: symmetric, not staged
  std::vector<Staging> staging_;
  LaunchArgs args_;
  std::unique_ptr<Instance> instance_;
  std::string call_;  // what a launch is called before the other ranks, and what must be the same
  std::uint64_t content_ = 0;
};

}  // namespace stretto::python
