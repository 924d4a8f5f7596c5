#include "stretto/runtime/control_block.h"

#include <new>

namespace stretto {

void FaultSlot::set(const FaultRecord& record) {
  program.set(record.program);
  signal.set(record.signal);
  role.set(record.role);
  reason.set(record.reason);
  rank = record.rank;
  waited_for = record.waited_for;
  tile = record.tile;
  channel = record.channel;
  expected = record.expected;
  seen = record.seen;
}

FaultRecord FaultSlot::get() const {
  return {.program = program.get(),
          .role = role.get(),
          .rank = rank,
          .tile = tile,
          .signal = signal.get(),
          .channel = channel,
          .expected = expected,
          .seen = seen,
          .waited_for = waited_for,
          .reason = reason.get()};
}

Control::Control() : owned_(std::make_unique<ControlBlock>()), block_(owned_.get()) {}

Control::Control(SharedMemory memory)
    : shared_(std::move(memory)), block_(reinterpret_cast<ControlBlock*>(shared_.data())) {
  shared_.close_fd();
}

SharedMemory Control::make() {
  SharedMemory memory = SharedMemory::create("control", kBytes);
  new (memory.data()) ControlBlock();
  return memory;
}

}  // namespace stretto
