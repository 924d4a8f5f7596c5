// Each rank gets its neighbour's row of x, doubled: written, proved and run on a world of threads.
#include <cstdio>
#include <vector>

#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/lang/program_builder.h"

using namespace stretto;  // NOLINT: an example

Program twice_the_neighbour(int ranks) {
  constexpr std::int64_t kCols = 8;
  ProgramBuilder p("twice_the_neighbour", ranks);
  TensorRef x = p.input("x", DType::kF32, {1, kCols}, Space::kSymmetric);
  TensorRef y = p.output("y", DType::kF32, {1, kCols});
  SignalRef ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("read", Resource::sms(1), p.range(1), [&](const Tile&) {
    Index from = (p.rank() + 1) % Index(ranks);
    p.wait(ready, from);
    Value row = p.load(x.on(from).tile({0, 0}, 1, kCols));
    p.store(y.tile({0, 0}, 1, kCols), row + row);
    p.notify(done, from);
  });
  p.on_end([&] { p.wait(done, (p.rank() + Index(ranks - 1)) % Index(ranks)); });
  return p.finish();
}

int main() {
  CompiledProgram compiled = compile(twice_the_neighbour(3));
  World world({.size = 3});
  world.run([&](Rank& rank) {
    SymmetricBuffer x = rank.allocate("x", DType::kF32, 8);
    std::vector<float> y(8);
    x.on<float>(rank.index())[7] = static_cast<float>(rank.index());
    Instance instance(rank, compiled.schedule, compiled.quotas);
    LaunchArgs args{.tensors = {{.symmetric = &x}, {.data = y.data()}}};
    instance.launch(args);
    std::printf("rank %d has %g\n", rank.index(), y[7]);
    rank.barrier();
    rank.release(x);
  });
}
