// What a GpuWorld over a world of processes has beside its device: memory that all processes map,
// the page of host memory through which their kernels stop together, and the watch over the other
// processes. Used by gpu_world.cc alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stretto/gpu/gpu_world.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"
#include "stretto/runtime/world.h"

namespace stretto {

// LOCAL_RANK, or else `rank`. UserError where it is no number.
int local_rank_of_environment(int rank);

// Where the ranks say on which device they are while the world is being made.
class GpuSeats {
 public:
  explicit GpuSeats(Rank& rank);  // collective
  ~GpuSeats();
  GpuSeats(const GpuSeats&) = delete;
  GpuSeats& operator=(const GpuSeats&) = delete;

  // open() opens the rank's device and returns its PCI address. Collective: where it throws on one
  // rank, every rank gets the error, as a DeviceError or UserError that names that rank. Once.
  void agree(const std::function<std::string()>& open);
  void require_own_devices() const;  // after agree(): UserError on every rank

 private:
  struct Seat {
    enum Outcome : int { kNone, kOpened, kUserError, kDeviceError };
    Outcome outcome;
    std::array<char, 500> text;  // PCI address, or the error
  };

  const Seat& seat(int rank) const;

  Rank& rank_;
  SymmetricBuffer seats_;
};

// What every rank passes, in their order. Collective; UserError where sizes differ.
std::vector<std::vector<std::byte>> exchange_bytes(Rank& rank, std::span<const std::byte> own);

struct GpuWorld::Processes {
 public:
  Processes(Rank& rank, std::size_t bytes);  // collective
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  Rank& rank() const { return rank_; }
  std::byte* words() const { return page_.on<std::byte>(0); }
  // Lets the device address the words, at address() from then on.
  void show_to(const cuda::Device& device);
  CUdeviceptr address() const { return registered_->address(); }

  // Calls `on_death` when a process dies, on any thread.
  void watch(std::function<void()> on_death);
  // Returns when the stream is idle; calls `abort` where the ranks' world has a fault by then.
  void await(const cuda::Stream& stream, const std::function<void()>& abort) const;
  SymmetricGpuMemory allocate(const cuda::Device& device, std::size_t bytes) const;

  // `words`: how many meetings the stream of each rank has come to. They lie in host memory, on
  // which the driver promises that streams of several devices wait.
  void meet_on(const cuda::Stream& stream, CUdeviceptr words);
  // Lets every stream past its meetings, also those to come.
  void end_meetings(std::byte* words) const;
  void begin_meetings() { num_meetings_ = 0; }  // once the words are zero again

 private:
  Rank& rank_;
  SymmetricBuffer page_;  // of rank 0, on every rank
  std::optional<cuda::RegisteredHostMemory> registered_;
  int watch_ = -1;
  std::uint64_t num_meetings_ = 0;
};

}  // namespace stretto
