// The GPU of a session's rank, from the first call with arrays there to finalize. Comes between
// session.h, which owns it, and gpu_session_executable.cc, which launches on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/world.h"

namespace stretto::python {

class GpuSide {
 public:
  struct Options {
    int device = 0;
    bool share_devices = false;                   // two ranks may be on one GPU
    std::shared_ptr<GpuLedger> ledger = nullptr;  // of this process's other worlds there
  };

  // Collective over the ranks of `world`, which outlives this; errors as GpuWorld. UserError for a
  // world of several ranks in one process.
  GpuSide(World& world, const Options& options);
  ~GpuSide();  // with no stretto kernel under way here
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  GpuWorld& world() { return *gpus_; }
  const cuda::Device& device() const { return gpus_->device(host_->index()); }
  int ordinal() const { return device().properties().ordinal; }
  std::shared_ptr<GpuLedger> ledger() const { return gpus_->ledger(host_->index()); }

  // Zeroed memory of the same size on every rank. Collective; UserError on every rank where they
  // name or size it differently.
  SymmetricGpuMemory allocate(const std::string& name, std::size_t bytes);
  // Gives memory back that work under way may still touch: when next there is a good moment. From
  // any thread, such as one that collects a tensor.
  void retire(SymmetricGpuMemory memory);

  void synchronize() const;  // until this GPU is idle

  // The stream that a caller's work is on, by the runtime's handle; 0: the null stream.
  const cuda::Stream& stream(std::uintptr_t handle);

  // Every rank is about to make the same call, else the same UserError: waits for their hosts.
  void agree(const std::string& call, std::uint64_t content);
  // Compares this call with those that the other ranks have made in its place, without waiting for
  // ranks that are not there yet. Fault on all where they differ, which ends what waits on GPUs;
  // not where both go on to agree().
  enum class Then { kLaunch, kAgree };
  void announce(const std::string& call, std::uint64_t content, Then then);
  // This rank does not make the call that comes after so many of its host's collective ones, and
  // its host has said why. Where another rank has launched it, a fault for all, which ends what
  // waits on GPUs; does not throw it.
  void refuse(const std::string& call, std::uint64_t num_host_calls) noexcept;

  // After the world has recovered, on every rank, before instances recover.
  void recover();

 private:
  using Call = std::atomic<std::uint64_t>;  // a word of gpu_side.cc

  void free_retired();
  // Fault where another rank's word in the same place does not go with this one.
  void compare(const std::string& call, std::uint64_t word, std::uint64_t num_host_calls);

  std::unique_ptr<World> own_;  // of a session of one rank, which may be one of threads
  Rank* host_;
  SymmetricBuffer calls_;  // [kCallsKept] of each rank, the latest
  std::uint64_t num_launches_ = 0;
  std::unique_ptr<GpuWorld> gpus_;
  std::mutex retiring_;  // of what follows
  std::vector<SymmetricGpuMemory> retired_;
  std::optional<cuda::Stream> stream_;  // the last that a call was on
};

}  // namespace stretto::python
