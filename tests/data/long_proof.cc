// Ranks send each other rows through so many slots that the proof takes long: it lays out three
// launches for each slot.
#include "stretto/lang/program_builder.h"

stretto::Program stretto_program(int world_size) {
  using namespace stretto;  // NOLINT: an example
  constexpr int kRows = 200, kSlots = 10'000;
  ProgramBuilder p("many_slots", world_size);
  TensorRef in = p.input("in", DType::kF32, {kRows, 8});
  TensorRef inbox = p.buffer("inbox", DType::kF32, {kRows, 8},
                             {.space = Space::kSymmetric, .num_slots = kSlots});
  TensorRef out = p.output("out", DType::kF32, {kRows, 8});
  SignalRef ready = p.signal("ready"), sent = p.signal("sent");
  Index next = (p.rank() + 1) % world_size, before = (p.rank() + world_size - 1) % world_size;
  p.on_start([&] { p.notify(ready, before); });
  p.role("send", Resource::copy_engine(), p.range(kRows), [&](const Tile& t) {
    p.when(t.index == 0, [&] { p.wait(ready, next); });
    p.put(inbox.on(next).tile({t.index, 0}, 1, 8), in.tile({t.index, 0}, 1, 8));
    p.notify(sent[p.rank()], next);
  });
  p.role("recv", Resource::sms(1), p.range(kRows), [&](const Tile& t) {
    p.wait(sent[before], t.index + 1);
    p.store(out.tile({t.index, 0}, 1, 8), p.load(inbox.tile({t.index, 0}, 1, 8)));
  });
  return p.finish();
}
