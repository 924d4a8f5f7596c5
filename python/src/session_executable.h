// A compiled program made ready to run on one rank of a session, with the staging memory of the
// tensors that other ranks address but the caller keeps elsewhere. cpu_session_executable.cc and
// gpu_session_executable.cc are the two places that know on what it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiled.h"
#include "session.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "symmetric_memory.h"

namespace stretto::python {

class SessionExecutable {
 public:
  // Collective. `staged` has an entry for each tensor that is no buffer, in the program's order:
  // whether a symmetric tensor lives in ordinary memory and is copied. Every rank passes the same.
  // On GPUs after Session::open_gpu(), and never while a stream is being captured; `records`: with
  // a kernel that Session::record() sees, as one on CPUs always is. `said`: see launch().
  static std::shared_ptr<SessionExecutable> make(std::shared_ptr<Session> session, int rank,
                                                 Compiled& compiled,
                                                 const std::vector<bool>& staged, MemoryKind place,
                                                 bool records, const std::string& said);
  virtual ~SessionExecutable() { unload(); }
  SessionExecutable(const SessionExecutable&) = delete;
  SessionExecutable& operator=(const SessionExecutable&) = delete;

  // Collective. Addresses in the order of `staged`, each of a dense row-major array of the
  // program's bound shape, of whose first dimension only what `extents` have is there. On the host,
  // returns when the results are there; on GPUs enqueues on `stream` (a handle of CUDA's runtime)
  // and returns. `said`: the call as its caller knows it, in words, the same on all ranks; of the
  // ranks' calls this is what errors show. Empty: the program's name and tensors. UserError
  // for an address outside symmetric memory that was not said to be staged. Where ranks launch
  // different executables, with different extents, words or other places of symmetric memory:
  // UserError on every rank, with nothing launched; on GPUs a Fault (GpuSide::announce).
  virtual void launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                      const std::string& said, std::uintptr_t stream) = 0;
  // launch() on a GPU in two parts, for launches that follow each other as one graph: what the ranks
  // compare, once for each launch, and what is enqueued, by itself into the graph. Errors as
  // launch() has them, those of the program by enqueue(). InternalError on CPU ranks.
  virtual void announce(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                        const std::string& said);
  virtual void enqueue(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                       const std::string& said, const cuda::Stream& on);
  // Of the call that was announced last: which places of symmetric memory, extents and words.
  std::uint64_t content_of_call() const { return call_.content; }
  std::optional<SmDemand> waiting() const { return loaded_->waiting(); }
  // What enqueue() enqueues: the launch, and copies of staged tensors.
  std::size_t num_enqueued() const;
  const Program& program() const { return *schedule_; }

  // Of the program and how its tensors are passed, the same on all ranks.
  std::uint64_t content() const { return content_; }
  // About what this keeps on a rank: buffers, copies of tensors, signals.
  std::size_t bytes() const { return bytes_; }
  // Numbers of launches that all ranks have agreed on, or on GPUs announced; 0: none since it was
  // made, or since forget_use(). The same on all ranks, unless one of those failed.
  std::uint64_t last_use() const { return last_use_; }
  void forget_use() { last_use_ = 0; }
  // Whether a graph has captured a launch, and may launch for as long as the process lives.
  virtual bool is_captured() const { return false; }
  virtual void mark_captured() {}

 protected:
  SessionExecutable(std::shared_ptr<Session> session, int rank, const Proved& compiled,
                    const std::vector<bool>& staged, MemoryKind place, const std::string& said);

  enum class Passing {
    kOwn,        // only this rank addresses it
    kSymmetric,  // others too, where it is
    kStaged,     // others too, a copy
  };
  struct Argument {
    std::size_t tensor;  // in the program
    Passing passing;
  };
  struct Staging {
    std::size_t arg;
    bool copied_in, copied_out;
    std::size_t bytes;  // at the extents of the call
    std::unique_ptr<SymmetricMemory> memory;
  };
  // A launch as it is called before the other ranks, and what must be the same on all.
  struct Call {
    std::vector<std::int64_t> extents;
    std::string said, name;
    std::uint64_t content = 0;
  };

  Session& session() const { return *session_; }
  int rank() const { return rank_; }
  // The place of a tensor that is passed by address, which peers find by that of theirs.
  struct SymmetricPlace {
    const SymmetricMemory* memory;
    std::uint64_t number;  // of the memory
    std::size_t offset_bytes;
  };
  // The call with these arguments; `staging_` and `places_` are as it has them. UserError where
  // they do not fit.
  const Call& call_with(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                        const std::string& said);
  // The program's largest, with symmetric tensors at the beginning of theirs.
  const Call& call_at_bounds() const { return call_; }
  void make_staging();  // collective
  // The call's launch, `args` placed as call_with() saw them. UserError as stretto::Executable's.
  Launch& launch_on(std::span<std::byte* const> args);
  void unload();
  void count_use() { last_use_ = session_->count_launch(rank_); }

  std::vector<Argument> arguments_;
  std::vector<Staging> staging_;
  std::vector<SymmetricPlace> places_;  // [arguments_]
  std::unique_ptr<stretto::Executable> loaded_;

 private:
  SymmetricPlace place_of(std::size_t arg, const std::byte* address) const;
  void size_for(std::span<const std::int64_t> extents, const std::string& said);

  std::vector<std::int64_t> bounds_;  // of a program that was compiled for them alone
  std::shared_ptr<Session> session_;
  int rank_;
  std::shared_ptr<const Program> schedule_;
  MemoryKind place_;
  std::uint64_t content_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t last_use_ = 0;
  Call call_;  // the last one
  Args args_;
  std::shared_ptr<Launch> launch_;
};

}  // namespace stretto::python
