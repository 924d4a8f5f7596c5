// Small step plans for the tests of this folder.
#pragma once

#include <string>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/step/plan.h"

namespace stretto::step {

inline constexpr std::int64_t kTestRows = 6, kTestCols = 64;

// out [m, 64] = a + b + number.
inline Program add_program(double number, int world_size = 1) {
  ProgramBuilder p("add", world_size);
  Index m = p.extent("m", kTestRows);
  TensorRef a = p.input("a", DType::kF32, {m, kTestCols});
  TensorRef b = p.input("b", DType::kF32, {m, kTestCols});
  TensorRef out = p.output("out", DType::kF32, {m, kTestCols});
  p.role("add", Resource::sms(2), p.range(m), [&](const Tile& t) {
    Value sum =
        p.load(a.tile({t.index, 0}, 1, kTestCols)) + p.load(b.tile({t.index, 0}, 1, kTestCols));
    p.store(out.tile({t.index, 0}, 1, kTestCols), sum + p.full(DType::kF32, 1, kTestCols, number));
  });
  return p.finish();
}

// kept [8, 64]: its first row is added to every row of x [m, 64], the last one of which it becomes.
inline Program keep_program() {
  ProgramBuilder p("keep", 1);
  Index m = p.extent("m", kTestRows);
  TensorRef x = p.input("x", DType::kF32, {m, kTestCols});
  TensorRef kept = p.state("kept", DType::kF32, {8, kTestCols});
  TensorRef out = p.output("out", DType::kF32, {m, kTestCols});
  p.role("keep", Resource::sms(1), p.range(m), [&](const Tile& t) {
    p.worker_fence();
    Value before = p.load(kept.tile({0, 0}, 1, kTestCols));
    Value own = p.load(x.tile({t.index, 0}, 1, kTestCols));
    p.store(out.tile({t.index, 0}, 1, kTestCols), own + before);
    p.worker_fence();
    p.when(t.index == m - 1, [&] { p.store(kept.tile({0, 0}, 1, kTestCols), own); });
  });
  return p.finish();
}

// in -> a -> b -> c -> ... of `length` locals, each of the two before it, and then out.
inline Plan chain(int length) {
  Plan plan{.name = "chain"};
  plan.extents = {{"rows", kTestRows}, {"some", kTestRows}};
  auto buffer = [&](const std::string& name, BufferKind kind) {
    plan.buffers.push_back(
        {.name = name, .kind = kind, .shape = {Size::of_extent(0), Size::of(kTestCols)}});
  };
  buffer("in", BufferKind::kInput);
  buffer("weight", BufferKind::kConstant);
  for (int i = 0; i < length; ++i) buffer("x" + std::to_string(i), BufferKind::kLocal);
  buffer("out", BufferKind::kOutput);
  plan.programs = {add_program(1), add_program(0.5)};
  for (int i = 0; i <= length; ++i) {
    int before = i == 0 ? 0 : i + 1, further = i < 2 ? 1 : i;
    plan.nodes.push_back({.name = "n" + std::to_string(i),
                          .program = i % 2,
                          .bindings = {{"a", before, {}}, {"b", further, {}}, {"out", i + 2, {}}},
                          .extents = {Size::of_extent(0)}});
  }
  plan.sections = {{"body", 0, plan.nodes.size()}};
  return plan;
}

}  // namespace stretto::step
