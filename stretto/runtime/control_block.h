// The words that the ranks of a world share beside its memory: the fault, where they meet, how they
// sleep. One block per world, in private memory or mapped by several processes. A rank may end at
// any instruction without leaving the others stuck: nothing here is a lock, and every field has one
// writer, but for `abort`.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "stretto/base/dtype.h"
#include "stretto/base/errors.h"
#include "stretto/runtime/idle_rank.h"
#include "stretto/runtime/processes/shared_memory.h"

namespace stretto {

constexpr int kMaxRanks = 64;

// Text in shared memory, cut where it is too long.
template <std::size_t N>
struct FixedText {
  std::array<char, N> bytes{};

  void set(const std::string& text) {
    std::size_t n = std::min(text.size(), N - 1);
    std::copy_n(text.data(), n, bytes.data());
    bytes[n] = 0;
  }
  // Whatever the bytes are: the writer may be a process that runs wild.
  std::string get() const { return {bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0')}; }
};

// A FaultRecord.
struct FaultSlot {
  FixedText<256> program, signal;
  FixedText<1024> role, reason;
  int rank = -1, waited_for = -1;
  std::int64_t tile = -1, channel = -1, expected = 0, seen = 0;

  void set(const FaultRecord& record);
  FaultRecord get() const;
};

// What a rank asks for in a collective call.
struct PostedRequest {
  std::uint32_t kind = 0;
  DType dtype = DType::kU8;
  std::uint64_t count = 0;
  std::uint64_t name_hash = 0;
  FixedText<256> name;
  FixedText<1024> error;
};

// Written by its rank alone.
struct alignas(64) Seat {
  std::atomic<std::uint64_t> num_arrived{0};  // collective calls that the rank has come to
  // 2k + 1 in the body of its k-th run (from 0), 2k after it and before the next; kLeft for ever.
  std::atomic<std::uint64_t> run{0};
  std::atomic<std::uint64_t> num_ids{0};       // allocations and splits
  std::atomic<std::uint64_t> num_recovers{0};  // steps of recovery
  // Of call i in [i % kSlots], until all have come to call i + 1 and so have read those of call i.
  // Two are enough for ranks that wait in every call; whoever refuses some goes ahead by the
  // others.
  static constexpr std::size_t kSlots = 4;
  std::array<PostedRequest, kSlots> posted;

  static constexpr std::uint64_t kLeft = ~std::uint64_t{0};
};

struct ControlBlock {
  std::atomic<std::uint32_t> abort{0};      // 0, or 1 + the index of the fault that won
  std::array<FaultSlot, kMaxRanks> faults;  // [world] by the process of that rank, before `abort`
  std::array<IdleRank, kMaxRanks> idle;     // [world]
  std::array<Seat, kMaxRanks> seats;        // [world]
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Owns a control block, or this process's mapping of one.
class Control {
 public:
  Control();                              // private
  explicit Control(SharedMemory memory);  // kBytes of it, made by make() in some process
  static SharedMemory make();             // UserError: out of memory
  static constexpr std::size_t kBytes = sizeof(ControlBlock);

  ControlBlock& operator*() const { return *block_; }
  ControlBlock* operator->() const { return block_; }

 private:
  SharedMemory shared_;
  std::unique_ptr<ControlBlock> owned_;
  ControlBlock* block_;
};

}  // namespace stretto
