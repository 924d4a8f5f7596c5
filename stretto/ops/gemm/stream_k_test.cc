// What the language has to be able to say beyond the configs of `gemm`: stream-K (arXiv
// 2301.03598), where every worker gets the same number of steps of the main loop, wherever tiles
// begin and end. If this fails, a schedule that balances any shape over any number of SMs cannot be
// written, or sums in an order that depends on timing.
#include <gtest/gtest.h>

#include <cmath>

#include "stretto/testing/cases/case_testing.h"
#include "stretto/testing/cases/gemm_case.h"

namespace stretto {
namespace {

// c [m, n] = a [m, k] * b [n, k]^T on one rank.
struct StreamK {
  std::int64_t m = 0, n = 0, k = 0;
  GemmTile tile;
  std::int64_t workers = 1;
};

// A worker's steps are a run of those of all tiles, one after the other: the end of a tile, whole
// tiles, the beginning of another. Whoever has a tile's first steps adds what the next workers
// stored of it, in the order of k. The end of a tile comes first in a worker's run, so that nobody
// waits for a worker that waits.
Program stream_k(const StreamK& s) {
  const GemmTile& tile = s.tile;
  ProgramBuilder p("stream_k", 1);
  auto a = p.input("a", DType::kF32, {s.m, s.k});
  auto b = p.input("b", DType::kF32, {s.n, s.k});
  auto c = p.output("c", DType::kF32, {s.m, s.n});
  auto ends = p.buffer("ends", DType::kF32, {s.workers, tile.bm, tile.bn});
  auto stored = p.signal("stored", s.workers);
  std::int64_t cols = ceil_div(s.n, tile.bn), steps = ceil_div(s.k, tile.bk);
  std::int64_t total = ceil_div(s.m, tile.bm) * cols * steps;
  auto begin_of = [&](const Index& worker) { return worker * total / s.workers; };

  p.role("gemm", Resource::sms(static_cast<int>(s.workers)), p.range(s.workers),
         [&](const Tile& worker) {
           Index begin = p.let("begin", begin_of(worker.index));
           Index end = p.let("end", begin_of(worker.index + 1));
           p.loop(begin / steps, ceil_div(end, steps), [&](const Index& t) {
             Index first = p.let("first", max(begin - t * steps, 0));
             Index last = p.let("last", min(end - t * steps, steps));
             Index row = t / cols * tile.bm, col = t % cols * tile.bn;
             Value acc = p.zeros(DType::kF32, tile.bm, tile.bn);
             p.loop(first, last, [&](const Index& i) {
               acc = dot(acc, p.load(a.tile({row, i * tile.bk}, tile.bm, tile.bk)),
                         p.load(b.tile({col, i * tile.bk}, tile.bn, tile.bk)).T());
             });
             auto end_by = [&](const Index& who) {
               return ends.tile({who, 0, 0}, tile.bm, tile.bn);
             };
             p.when(
                 first > 0,
                 [&] {
                   p.store(end_by(worker.index), acc);
                   p.notify(stored[worker.index], p.rank());
                 },
                 [&] {
                   p.loop(worker.index + 1, s.workers, [&](const Index& next) {
                     p.when(begin_of(next) < (t + 1) * steps, [&] {
                       p.wait(stored[next]);
                       acc = acc + p.load(end_by(next));
                     });
                   });
                   p.store(c.tile({row, col}, tile.bm, tile.bn), acc);
                 });
           });
         });
  return p.finish();
}

TEST(StreamK, ProvedAndTheSameBitsWhateverTheTiming) {
  std::uint64_t seed = test_seed();
  GemmTile tile{.bm = 8, .bn = 12, .bk = 10};
  // Workers with less than a tile, with about one, with several; runs that end where tiles do.
  for (std::int64_t workers : {1, 2, 3, 5, 7, 12, 31}) {
    OpCase c;
    StreamK s{.m = 21, .n = 29, .k = 47, .tile = tile, .workers = workers};
    c.program = stream_k(s);
    c.config = "workers=" + std::to_string(workers);
    fill_inputs(c, seed);
    auto out = static_cast<std::size_t>(c.program.find_tensor("c"));
    c.expected[0][out] =
        product_reference(input_of(c, 0, "a"), input_of(c, 0, "b"), {.m = s.m, .n = s.n, .k = s.k});
    c.tolerance = sum_tolerance(DType::kF32, s.k);
    c.scale = std::sqrt(static_cast<double>(s.k));
    expect_runs(c, seed);
  }
}

}  // namespace
}  // namespace stretto
