#include "stretto/ops/embedding/embedding.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {
namespace {

void check(const VocabDesc& d, const VocabConfig& c) {
  auto positive = [](std::int64_t value, const char* field) {
    if (value < 1)
      throw UserError(fmt::format("vocabulary: {} is {}, need at least 1", field, value));
  };
  positive(d.m, "m");
  positive(d.hidden, "hidden");
  positive(d.vocab, "vocab");
  positive(d.world_size, "world_size");
  positive(c.tile_rows, "tile_rows");
  positive(c.tile_vocab, "tile_vocab");
  if (c.tile_k < 0) {
    throw UserError(fmt::format("vocabulary: tile_k is {}, need 0 or more", c.tile_k));
  }
  positive(c.num_workers, "num_workers");
  positive(c.num_queues, "num_queues");
}

void wait_for_readers(ProgramBuilder& p, const SignalRef& done, const Index& times) {
  p.on_end([&] { p.loop(p.world_size(), [&](const Index& i) { p.wait(done[i], times); }); });
}

}  // namespace

std::int64_t vocab_per_rank(const VocabDesc& d) {
  return ceil_div(d.vocab, static_cast<std::int64_t>(d.world_size));
}

Program embedding(const VocabDesc& d, const VocabConfig& cfg) {
  check(d, cfg);
  std::int64_t share = vocab_per_rank(d);
  ProgramBuilder p("embedding", d.world_size);
  Index m = p.extent("m", d.m);
  Index own_rows = max(ceil_div(m, d.world_size), 1);
  TensorRef tokens = p.table("tokens", {m, 1}, {ContractKind::kRange, 0, d.vocab});
  TensorRef table = p.input("table", d.weight_dtype, {share, d.hidden});
  TensorRef parts = p.buffer("parts", d.dtype, {m, d.hidden}, {.space = Space::kSymmetric});
  TensorRef out =
      p.output("out", d.dtype, {d.sequence_parallel ? ceil_div(m, d.world_size) : m, d.hidden});
  std::int64_t row_tiles = ceil_div(d.m, cfg.tile_rows);
  SignalRef looked_up = p.signal("looked_up");
  SignalRef done = p.signal("done");

  p.role("lookup", Resource::sms(cfg.num_workers), p.grid(d.m, 1, cfg.tile_rows, 1),
         [&](const Tile& t) {
           Value row = p.load(tokens.tile({t.row, 0}, cfg.tile_rows, 1)) -
                       p.splat(DType::kI32, p.rank() * share);
           Value mine = row >= p.splat(DType::kI32, 0) && row < p.splat(DType::kI32, share);
           Value local = where(mine, row, p.splat(DType::kI32, -1));
           Value found = p.load_rows(table.tile({0, 0}, cfg.tile_rows, d.hidden), local);
           p.store(parts.tile({t.row, 0}, cfg.tile_rows, d.hidden), cast(found, d.dtype));
           p.notify_all(looked_up);
         });
  TileSpace sums =
      p.grid(d.sequence_parallel ? ceil_div(d.m, d.world_size) : d.m, 1, cfg.tile_rows, 1);
  p.role("sum", Resource::sms(cfg.num_workers), sums, [&](const Tile& t) {
    Index row = d.sequence_parallel ? p.rank() * own_rows + t.row : t.row;
    Index end = d.sequence_parallel ? min((p.rank() + 1) * own_rows, m) : m;
    Value sum = p.zeros(DType::kF32, cfg.tile_rows, d.hidden);
    p.loop(p.world_size(), [&](const Index& r) {
      p.wait(looked_up[r], row_tiles);
      sum = sum + cast(p.load(parts.on(r).tile({row, 0}, cfg.tile_rows, d.hidden).until_row(end)),
                       DType::kF32);
    });
    p.notify_all(done);
    p.store(out.tile({t.row, 0}, cfg.tile_rows, d.hidden), cast(sum, d.dtype));
  });
  wait_for_readers(p, done, sums.count());
  return p.finish();
}

Program lm_head(const VocabDesc& d, const VocabConfig& cfg) {
  check(d, cfg);
  std::int64_t share = vocab_per_rank(d);
  ProgramBuilder p("lm_head", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef x = p.input("x", d.dtype, {m, d.hidden});
  TensorRef table = p.input("table", d.weight_dtype, {share, d.hidden});
  TensorRef part = p.buffer("part", DType::kF32, {m, share}, {.space = Space::kSymmetric});
  TensorRef logits = p.output("logits", DType::kF32, {m, d.vocab});
  std::int64_t row_tiles = ceil_div(d.m, cfg.tile_rows),
               col_tiles = ceil_div(share, cfg.tile_vocab);
  SignalRef computed = p.signal("computed", d.world_size * col_tiles);  // [owner][column block]
  SignalRef done = p.signal("done");

  std::int64_t tile_k = cfg.tile_k == 0 ? d.hidden : cfg.tile_k;
  p.role("gemm", Resource::sms(cfg.num_workers).pipelined(cfg.num_stages),
         p.grid(d.m, share, cfg.tile_rows, cfg.tile_vocab).columns_first(), [&](const Tile& t) {
           Value acc = p.zeros(DType::kF32, cfg.tile_rows, cfg.tile_vocab);
           p.loop(ceil_div(d.hidden, tile_k), [&](const Index& step) {
             Index k = step * tile_k;
             acc = dot(acc, p.load(x.tile({t.row, k}, cfg.tile_rows, tile_k)),
                       p.load(table.tile({t.col, k}, cfg.tile_vocab, tile_k)).T());
           });
           p.store(part.tile({t.row, t.col}, cfg.tile_rows, cfg.tile_vocab), acc);
           p.loop(p.world_size(), [&](const Index& i) {
             p.notify(computed[p.rank() * col_tiles + t.n], (p.rank() + i) % p.world_size());
           });
         });
  p.role(
      "gather",
      cfg.num_copy_sms > 0 ? Resource::sms(cfg.num_copy_sms)
                           : Resource::copy_engine(cfg.num_queues),
      p.range(d.world_size * col_tiles), [&](const Tile& t) {
        Index owner = p.let("owner", (p.rank() + t.index / col_tiles) % d.world_size);
        Index block = p.let("block", t.index % col_tiles);
        Index col = p.let("col", block * cfg.tile_vocab);
        p.wait(computed[owner * col_tiles + block], row_tiles);
        Index end =
            min((owner + 1) * share, d.vocab);  // of this owner's columns in the whole vocabulary
        Slice to = logits.tile({0, owner * share + col}, d.m, cfg.tile_vocab).until_col(end);
        p.rank_copy_data(
            part.on(owner).tile({0, col}, d.m, cfg.tile_vocab).until_col(end - owner * share), to);
        p.notify(done, owner);
      });
  wait_for_readers(p, done, col_tiles);
  return p.finish();
}

std::string to_string(const VocabDesc& d) {
  return fmt::format("m={} hidden={} vocab={} {} (table {}) P={}", d.m, d.hidden, d.vocab,
                     short_name(d.dtype), short_name(d.weight_dtype), d.world_size);
}

VocabConfig default_config(const VocabDesc& d) {
  return {.tile_rows = std::min<std::int64_t>(16, d.m),
          .tile_vocab = std::min<std::int64_t>(512, vocab_per_rank(d))};
}

VocabConfig embedding_gpu_config(const VocabDesc& d) {
  constexpr std::int64_t kElements = 4096;  // of a tile, 16 a thread
  VocabConfig c{.tile_rows = std::clamp<std::int64_t>(kElements / d.hidden, 1, d.m)};
  c.num_workers = gpu_workers(ceil_div(d.m, c.tile_rows), kGpuSms / 2);
  return c;
}

VocabConfig lm_head_gpu_config(const VocabDesc& d) {
  std::int64_t share = vocab_per_rank(d);
  GpuLoop loop = gpu_loop({.m = d.m, .n = share, .a_dtype = d.dtype, .b_dtype = d.weight_dtype});
  VocabConfig c{.tile_rows = loop.tile.bm,
                .tile_vocab = loop.tile.bn,
                .tile_k = loop.tile.bk,
                .num_stages = loop.num_stages,
                .num_copy_sms = 16};
  std::int64_t tiles = ceil_div(d.m, c.tile_rows) * ceil_div(share, c.tile_vocab);
  c.num_workers = gpu_workers(tiles, kGpuSms - c.num_copy_sms);
  return c;
}

}  // namespace stretto
