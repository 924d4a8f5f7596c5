// A program that doubles a row: written, lowered, predicted, proved, and run on a world of three
// threads.
#include <cstdio>

#include "stretto/lang/program_builder.h"
#include "stretto/stretto.h"
int main() {
  using namespace stretto;
  ProgramBuilder p("twice", 3);
  TensorRef x = p.input("x", DType::kF32, {1, 8}), y = p.output("y", DType::kF32, {1, 8});
  p.role("double", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(y.tile({0, 0}, 1, 8), p.load(x.tile({0, 0}, 1, 8)) * 2.0);
  });
  Lowered lowered = lower(p.finish());
  std::printf("%g us on GPUs\n",
              1e3 * predict::predict(lowered, predict::find_machine("h200x4")).time_ms);
  Proved proved = prove(lowered);
  World({.size = 3}).run([&](Rank& rank) {
    float in[8] = {static_cast<float>(rank.index()) + 1}, out[8];
    auto loaded = load(proved, rank);
    loaded->prepare({.tensors = {{.data = in}, {.data = out}}})->run({});
    std::printf("rank %d has %g\n", rank.index(), out[0]);
  });
}
