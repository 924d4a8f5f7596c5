// What values live in on the CPU executor: registers of agents, and what the agents of a worker
// share, the slots of pipes and the arrivals at barriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// A register. Doubles are held as they are, other floats as f32, booleans and u8 as bytes, integers
// as they are.
struct Register {
  DType dtype = DType::kF32;
  std::int64_t rows = 1, cols = 1;
  void* data = nullptr;  // the own storage, or a pipe's slot
  void* own = nullptr;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// A register that stood for a pipe's slot gets its own storage back, and the slot's value, before
// it is written.
Register& writable(Register& reg);

struct FreeDeleter {
  void operator()(std::byte* p) const;
};
using AlignedBytes = std::unique_ptr<std::byte, FreeDeleter>;
// 64-byte aligned; contents undefined.
AlignedBytes allocate_aligned(std::size_t bytes);

// Bounded first-in first-out queue between agents of one worker.
struct PipeState {
  std::vector<Register> slots;
  std::uint64_t put = 0, got = 0, released = 0;
  int ring = -1;  // of the worker, where pipes share slots (Pipe::shares)
};
// The slots that pipes share, as they were put: each slot's payload lies in its own pipe.
struct RingState {
  struct Put {
    int pipe;
    std::uint64_t number;  // of the pipe, from 1
  };
  std::uint64_t num_slots = 0;
  std::deque<Put> held;    // put and not released, or before one that is not
  std::deque<Put> queued;  // put and not got
};
struct BarrierState {
  std::uint64_t arrivals = 0;
};

// As a register holds it; whole lines of the cache.
std::size_t register_bytes(const ValueType& type);

// What the agents of one worker share.
struct WorkerState {
  std::vector<PipeState> pipes;
  std::vector<RingState> rings;

  // Whether the pipe's next slot is free, and whether its next one got is full and in its turn.
  bool takes(int pipe);
  bool gives(int pipe) const;
  // What a put and a get have done, once they are counted.
  void note_put(int pipe);
  void note_get(int pipe);
  std::vector<BarrierState> barriers;
  AlignedBytes arena;  // allocated when the worker is known to have a tile

  // Of a role's pipes and barriers, once.
  void allocate(const Role& role);
};

}  // namespace stretto
