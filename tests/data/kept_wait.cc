// Every rank sends a row to its right neighbour, which adds it up once it is there.
#include "stretto/lang/program_builder.h"

stretto::Program stretto_program(int world_size) {
  using namespace stretto;  // NOLINT: an example
  ProgramBuilder p("neighbour_sum", world_size);
  TensorRef in = p.input("in", DType::kF32, {1, 64});
  TensorRef inbox = p.buffer("inbox", DType::kF32, {1, 64}, {.space = Space::kSymmetric});
  TensorRef out = p.output("out", DType::kF32, {1, 64});
  SignalRef free = p.signal("free"), sent = p.signal("sent");
  Index right = (p.rank() + 1) % world_size, left = (p.rank() + world_size - 1) % world_size;
  p.on_start([&] { p.notify(free, left); });
  p.role("send", Resource::copy_engine(), p.range(1), [&](const Tile&) {
    p.wait(free, right);
    p.put_signal(inbox.on(right).tile({0, 0}, 1, 64), in.tile({0, 0}, 1, 64), sent[p.rank()],
                 right);
  });
  p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(sent, left);
    p.store(out.tile({0, 0}, 1, 64),
            p.load(in.tile({0, 0}, 1, 64)) + p.load(inbox.tile({0, 0}, 1, 64)));
  });
  return p.finish();
}
