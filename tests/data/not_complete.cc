// A table decides which row is written: row 0, whatever it says, which the proof does not see.
#include "stretto/lang/program_builder.h"

stretto::Program stretto_program(int world_size) {
  using namespace stretto;  // NOLINT: an example
  ProgramBuilder p("row_by_table", world_size);
  TensorRef which = p.table("which", {1}, {ContractKind::kRange, 0, 2});
  TensorRef out = p.output("out", DType::kF32, {1, 8});
  p.role("write", Resource::sms(1), p.range(1), [&](const Tile&) {
    Index entry = p.read(which, {0});
    p.store(out.tile({entry * (1 - entry), 0}, 1, 8), p.full(DType::kF32, 1, 8, 3));
  });
  return p.finish();
}
