// Each rank gets its neighbour's row of x, doubled: written, proved and run on a world of threads.
#include <cstdio>

#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/lang/program_builder.h"

int main() {
  using namespace stretto;
  ProgramBuilder p("twice_the_neighbour", 3);
  TensorRef x = p.input("x", DType::kF32, {1, 8}, Space::kSymmetric);
  TensorRef y = p.output("y", DType::kF32, {1, 8});
  SignalRef ready = p.signal("ready"), done = p.signal("done");
  Index next = (p.rank() + 1) % 3, previous = (p.rank() + 2) % 3;
  p.on_start([&] { p.notify_all(ready); });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(ready, next);
    p.store(y.tile({0, 0}, 1, 8), p.load(x.on(next).tile({0, 0}, 1, 8)) * 2.0);
    p.notify(done, next);
  });
  p.on_end([&] { p.wait(done, previous); });
  CompiledProgram compiled = compile(p.finish());
  World({.size = 3}).run([&](Rank& rank) {
    SymmetricBuffer in = rank.allocate("x", DType::kF32, 8);
    float out[8];
    in.on<float>(rank.index())[7] = static_cast<float>(rank.index());
    Instance(rank, compiled.schedule, compiled.quotas)
        .launch({.tensors = {{.symmetric = &in}, {.data = out}}});
    std::printf("rank %d has %g\n", rank.index(), out[7]);
    rank.barrier();
    rank.release(in);
  });
}
