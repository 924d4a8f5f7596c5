#include "stretto/ops/calibrate/micro_programs.h"

#include "stretto/lang/program_builder.h"

namespace stretto {

Program move_rows(int world_size, Route route, std::int64_t rows, int sms) {
  constexpr std::int64_t kTileRows = 64;  // 1 MiB: its latency hardly counts
  ProgramBuilder p("move_rows", world_size);
  auto in = p.input("in", DType::kBF16, {rows, kMoveCols}, Space::kSymmetric);
  auto out = p.output("out", DType::kBF16, {rows, kMoveCols}, Space::kSymmetric);
  p.role("move", Resource::sms(sms), p.grid(in, kTileRows, kMoveCols), [&](const Tile& t) {
    Index next = p.let("next", (p.rank() + 1) % world_size);
    Slice from = in.tile({t.row, 0}, kTileRows, kMoveCols);
    Slice to = out.tile({t.row, 0}, kTileRows, kMoveCols);
    if (route == Route::kPull) from = from.on(next);
    if (route == Route::kPush) to = to.on(next);
    p.put(to, from);
  });
  return p.finish();
}

Program ping_pong(int world_size, std::int64_t hops) {
  ProgramBuilder p("ping_pong", world_size);
  auto in = p.input("in", DType::kBF16, {1, 8});
  auto out = p.output("out", DType::kBF16, {1, 8});
  auto ball = p.signal("ball", 2);  // by side
  // Hop i belongs to side i % 2, which has been sent (i + 1) / 2 balls before.
  auto hop = [&](const Index& i, int side, const Index& to) {
    p.wait(ball[side], (i + 1) / 2);
    p.notify(ball[1 - side], to);
  };
  p.on_start([&] { p.put(out.tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8)); });
  for (int side : {0, 1}) {
    int rank = side % world_size, to = (1 - side) % world_size;
    p.role(side == 0 ? "ping" : "pong", Resource::sms(1), p.range(hops / 2), [&](const Tile& t) {
      p.when(p.rank() == rank, [&] { hop(t.index * 2 + side, side, to); });
    });
  }
  return p.finish();
}

Program smallest(int world_size) {
  ProgramBuilder p("smallest", world_size);
  auto in = p.input("in", DType::kBF16, {1, 8});
  auto out = p.output("out", DType::kBF16, {1, 8});
  p.role("move", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.put(out.tile({0, 0}, 1, 8), in.tile({0, 0}, 1, 8));
  });
  return p.finish();
}

}  // namespace stretto
