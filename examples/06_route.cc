// out[i] = gate[i] * row `row_of[i]` of rank `rank_of[i]`: tables that are known at run time decide
// what is fetched from where. The proof holds for every table that keeps its contract.
//   stretto prove examples/06_route.cc --ranks 1..8
#include "stretto/lang/program_builder.h"

using namespace stretto;  // NOLINT: an example

Program stretto_program(int world_size) {
  constexpr std::int64_t kTokens = 48, kHidden = 64;
  ProgramBuilder p("route", world_size);
  TensorRef x = p.input("x", DType::kF32, {kTokens, kHidden}, Space::kSymmetric);
  TensorRef gate = p.input("gate", DType::kF32, {kTokens, 1});
  TensorRef rank_of = p.table("rank_of", {kTokens}, {ContractKind::kRange, 0, world_size});
  TensorRef row_of = p.table("row_of", {kTokens}, {ContractKind::kRange, 0, kTokens});
  TensorRef out = p.output("out", DType::kF32, {kTokens, kHidden});
  SignalRef ready = p.signal("ready"), done = p.signal("done");

  p.on_start([&] { p.notify_all(ready); });  // my x may be read in this launch
  p.role("fetch", Resource::sms(4), p.range(kTokens), [&](const Tile& t) {
    Index owner = p.let("owner", p.read(rank_of, {t.index}));
    Index row = p.let("row", p.read(row_of, {t.index}));
    p.wait(ready, owner);
    Value theirs = p.load(x.on(owner).tile({row, 0}, 1, kHidden));
    p.store(out.tile({t.index, 0}, 1, kHidden), p.load(gate.tile({t.index, 0}, 1, 1)) * theirs);
  });
  p.on_end([&] { p.barrier(done); });  // nobody reads x any more
  return p.finish();
}
