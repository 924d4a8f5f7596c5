// A ring: every rank's block visits every other rank, one hop at a time, while each rank adds what
// passes by. Shows a loop over steps, one channel per step, and a buffer with a slot per step, so
// that nothing is overwritten within a launch.
//   stretto prove examples/03_ring_pass.cc --ranks 1..8
#include "stretto/lang/program_builder.h"

using namespace stretto;  // NOLINT: an example

Program stretto_program(int world_size) {
  ProgramBuilder p("ring_pass", world_size);
  TensorRef in = p.input("in", DType::kF32, {16, 32});
  TensorRef hop = p.buffer("hop", DType::kF32, {world_size, 16, 32}, {.space = Space::kSymmetric});
  TensorRef out = p.output("out", DType::kF32, {16, 32});
  SignalRef free = p.signal("free"), arrived = p.signal("arrived", world_size);
  Index next = (p.rank() + 1) % world_size, previous = (p.rank() + world_size - 1) % world_size;

  p.on_start([&] { p.notify(free, previous); });
  p.role("ring", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value block = p.load(in.tile({0, 0}, 16, 32));
    Value sum = copy(block);
    p.wait(free, next);
    p.loop(1, world_size, [&](const Index& step) {
      p.store(hop.on(next).tile({step, 0, 0}, 16, 32), block);
      p.notify(arrived[step], next);
      p.wait(arrived[step]);
      block = p.load(hop.tile({step, 0, 0}, 16, 32));
      sum = sum + block;
    });
    p.store(out.tile({0, 0}, 16, 32), sum);
  });
  return p.finish();
}
