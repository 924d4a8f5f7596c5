// out = in + the left neighbour's in, streamed tile by tile through two slots of an inbox. A slot
// is written again only when its reader has given it back: `free` counts what may be written.
//   stretto prove examples/04_slots.cc --ranks 1..8
#include "stretto/lang/program_builder.h"

using namespace stretto;  // NOLINT: an example

Program stretto_program(int world_size) {
  constexpr std::int64_t kRows = 500, kCols = 64, kTile = 64, kSlots = 2;
  ProgramBuilder p("slots", world_size);
  TensorRef in = p.input("in", DType::kF32, {kRows, kCols});
  TensorRef inbox =
      p.buffer("inbox", DType::kF32, {kSlots, kTile, kCols}, {.space = Space::kSymmetric});
  TensorRef out = p.output("out", DType::kF32, {kRows, kCols});
  SignalRef free = p.signal("free"), sent = p.signal("sent");
  Index right = (p.rank() + 1) % world_size, left = (p.rank() + world_size - 1) % world_size;

  p.on_start([&] { p.notify(free[p.rank()], left, kSlots); });  // both slots
  p.role("send", Resource::copy_engine(), p.grid(in, kTile, kCols), [&](const Tile& t) {
    p.wait(free[right], t.index + 1);
    p.put_signal(inbox.on(right).tile({t.index % kSlots, 0, 0}, kTile, kCols),
                 in.tile({t.row, 0}, kTile, kCols), sent[p.rank()], right);
  });
  p.role("add", Resource::sms(1), p.grid(out, kTile, kCols), [&](const Tile& t) {
    p.wait(sent[left], t.index + 1);
    Value theirs = p.load(inbox.tile({t.index % kSlots, 0, 0}, kTile, kCols));
    p.notify(free[p.rank()], left);
    p.store(out.tile({t.row, 0}, kTile, kCols), p.load(in.tile({t.row, 0}, kTile, kCols)) + theirs);
  });
  return p.finish();
}
