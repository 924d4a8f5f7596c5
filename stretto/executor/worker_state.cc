#include "stretto/executor/worker_state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "stretto/executor/kernels/tile_ref.h"

namespace stretto {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

std::size_t register_bytes(const ValueType& type) {
  std::size_t element = size_bytes(kernels::register_dtype(type.dtype));
  return aligned(static_cast<std::size_t>(type.rows * type.cols) * element);
}

void FreeDeleter::operator()(std::byte* p) const { std::free(p); }

AlignedBytes allocate_aligned(std::size_t bytes) {
  void* p = std::aligned_alloc(kAlignment, std::max(aligned(bytes), kAlignment));
  if (p == nullptr) throw std::bad_alloc();
  return AlignedBytes(static_cast<std::byte*>(p));
}

Register& writable(Register& reg) {
  if (reg.data != reg.own) {
    std::memcpy(reg.own, reg.data, register_bytes({reg.dtype, reg.rows, reg.cols}));
    reg.data = reg.own;
  }
  return reg;
}

void WorkerState::allocate(const Role& role) {
  std::size_t total = 0;
  for (const Pipe& pipe : role.pipes) {
    total += register_bytes(pipe.type) * static_cast<std::size_t>(pipe.num_slots);
  }
  arena = allocate_aligned(total);
  std::byte* next = arena.get();
  for (const Pipe& pipe : role.pipes) {
    PipeState state;
    for (int s = 0; s < pipe.num_slots; ++s) {
      state.slots.push_back({pipe.type.dtype, pipe.type.rows, pipe.type.cols, next, next});
      next += register_bytes(pipe.type);
    }
    if (pipe.shares >= 0) {
      PipeState& home = pipes[static_cast<std::size_t>(pipe.shares)];
      if (home.ring < 0) {
        home.ring = static_cast<int>(rings.size());
        rings.push_back({.num_slots = static_cast<std::uint64_t>(pipe.num_slots)});
      }
      state.ring = home.ring;
    }
    pipes.push_back(std::move(state));
  }
  barriers.resize(role.barriers.size());
}

bool WorkerState::takes(int pipe) {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.ring < 0) return p.put - p.released < p.slots.size();
  RingState& ring = rings[static_cast<std::size_t>(p.ring)];
  auto released = [&](const RingState::Put& put) {
    return pipes[static_cast<std::size_t>(put.pipe)].released >= put.number;
  };
  while (!ring.held.empty() && released(ring.held.front())) ring.held.pop_front();
  return ring.held.size() < ring.num_slots;
}

bool WorkerState::gives(int pipe) const {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.got == p.put) return false;
  return p.ring < 0 || rings[static_cast<std::size_t>(p.ring)].queued.front().pipe == pipe;
}

void WorkerState::note_put(int pipe) {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.ring < 0) return;
  RingState& ring = rings[static_cast<std::size_t>(p.ring)];
  ring.held.push_back({pipe, p.put});
  ring.queued.push_back({pipe, p.put});
}

void WorkerState::note_get(int pipe) {
  const PipeState& p = pipes[static_cast<std::size_t>(pipe)];
  if (p.ring >= 0) rings[static_cast<std::size_t>(p.ring)].queued.pop_front();
}

}  // namespace stretto
