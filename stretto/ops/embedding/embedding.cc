#include "stretto/ops/embedding/embedding.h"

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/operator/field_check.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

void check(const VocabDesc& d, const VocabConfig& c) {
  check_sizes("vocabulary", {{"m", d.m},
                             {"hidden", d.hidden},
                             {"vocab", d.vocab},
                             {"world_size", d.world_size},
                             {"tile_rows", c.tile_rows},
                             {"tile_vocab", c.tile_vocab},
                             {"num_workers", c.num_workers}});
  check_sizes("vocabulary", {{"chosen", d.chosen}, {"tile_k", c.tile_k}}, 0);
  check_dtype("vocabulary", "dtype", d.dtype);
  check_dtype("vocabulary", "weight_dtype", d.weight_dtype);
}

void wait_for_all(ProgramBuilder& p, const SignalRef& done, const Index& times) {
  p.on_end([&] { p.loop(p.world_size(), [&](const Index& i) { p.wait(done[i], times); }); });
}

}  // namespace

std::int64_t vocab_per_rank(const VocabDesc& d) {
  return ceil_div(d.vocab, static_cast<std::int64_t>(d.world_size));
}

Program embedding(const VocabDesc& d, const VocabConfig& cfg) {
  check(d, cfg);
  auto fields = FieldFit::refusing("embedding " + to_string(d));
  VocabConfig will_run = cfg;
  fields.only("tile_k", will_run.tile_k, 0, "of lm_head alone");
  fields.only("num_stages", will_run.num_stages, 0, "of lm_head alone");
  std::int64_t share = vocab_per_rank(d);
  ProgramBuilder p("embedding", d.world_size);
  Index m = p.extent("m", d.m);
  Index own_rows = max(ceil_div(m, d.world_size), 1);
  TensorRef tokens = p.table("tokens", {m, 1}, {ContractKind::kRange, 0, d.vocab});
  TensorRef sources, chosen;
  if (d.chosen > 0) {
    sources = p.table("sources", {m, 1}, {ContractKind::kRange, -1, d.chosen});
    chosen = p.input("chosen", DType::kI32, {d.chosen, 1});
  }
  TensorRef table = p.input("table", d.weight_dtype, {share, d.hidden});
  TensorRef parts = p.buffer("parts", d.dtype, {m, d.hidden}, {.space = Space::kSymmetric});
  TensorRef out =
      p.output("out", d.dtype, {d.sequence_parallel ? ceil_div(m, d.world_size) : m, d.hidden});
  std::int64_t row_tiles = ceil_div(d.m, cfg.tile_rows);
  SignalRef looked_up = p.signal("looked_up");
  SignalRef done = p.signal("done");

  p.role("lookup", Resource::sms(cfg.num_workers), p.grid(d.m, 1, cfg.tile_rows, 1),
         [&](const Tile& t) {
           Value token = p.load(tokens.tile({t.row, 0}, cfg.tile_rows, 1));
           if (d.chosen > 0) {
             Value source = p.load(sources.tile({t.row, 0}, cfg.tile_rows, 1));
             token = token + p.load_rows(chosen.tile({0, 0}, cfg.tile_rows, 1), source);
           }
           Value row = token - p.splat(DType::kI32, p.rank() * share);
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
  wait_for_all(p, done, sums.count());
  return p.finish();
}

Program lm_head(const VocabDesc& d, const VocabConfig& cfg) {
  check(d, cfg);
  std::int64_t share = vocab_per_rank(d);
  ProgramBuilder p("lm_head", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef x = p.input("x", d.dtype, {m, d.hidden});
  TensorRef table = p.input("table", d.weight_dtype, {share, d.hidden});
  TensorRef logits = p.output("logits", DType::kF32, {m, d.vocab}, Space::kSymmetric);
  std::int64_t tile_k = cfg.tile_k == 0 ? d.hidden : cfg.tile_k;
  const std::int64_t row_tiles = ceil_div(d.m, cfg.tile_rows);
  const std::int64_t tiles = row_tiles * ceil_div(share, cfg.tile_vocab);
  const int workers = cfg.num_workers;
  bool alone = d.world_size == 1;  // nobody to wait for
  // By rank: its logits may be written; workers that have written theirs there.
  SignalRef ready, gathered;
  if (!alone) {
    ready = p.signal("ready");
    gathered = p.signal("gathered");
    p.on_start([&] { p.notify_all(ready); });
  }

  auto multiply = [&](const Index& row, const Index& col) {
    Value acc = p.zeros(DType::kF32, cfg.tile_rows, cfg.tile_vocab);
    p.loop(ceil_div(d.hidden, tile_k), [&](const Index& step) {
      Index k = step * tile_k;
      acc = dot(acc, p.load(x.tile({row, k}, cfg.tile_rows, tile_k)),
                p.load(table.tile({col, k}, cfg.tile_vocab, tile_k)).T());
    });
    return acc;
  };
  Resource sms = Resource::sms(workers).pipelined(cfg.num_stages);
  p.role("gemm", sms, p.range(workers), [&](const Tile& worker) {
    // Once, and told of once: either takes as long as the weights of half a tile.
    if (!alone) p.wait_all(ready);
    p.loop(ceil_div(tiles - worker.index, workers), [&](const Index& i) {
      Index tile = p.let("tile", worker.index + i * workers);
      Index row = p.let("row", tile % row_tiles * cfg.tile_rows);
      Index col = p.let("col", tile / row_tiles * cfg.tile_vocab);
      Value acc = multiply(row, col);
      Index first = p.let("first", p.rank() * share);
      Index end = p.let("end", min(first + share, d.vocab));  // of this rank's columns
      Slice columns = logits.tile({row, first + col}, cfg.tile_rows, cfg.tile_vocab).until_col(end);
      if (alone) return p.store(columns, acc);
      p.loop(d.world_size,
             [&](const Index& r) { p.store(columns.on((p.rank() + 1 + r) % d.world_size), acc); });
    });
    if (!alone) p.notify_all(gathered);
  });
  if (!alone) wait_for_all(p, gathered, workers);
  return p.finish();
}

NamedFields fields_of(VocabDesc& d) {
  return {{"m", d.m},
          {"hidden", d.hidden},
          {"vocab", d.vocab},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("weight_dtype", d.weight_dtype).as("(table {})"),
          NamedField("world_size", d.world_size).as("P={}"),
          {"sequence_parallel", d.sequence_parallel},
          {"chosen", d.chosen, 0}};
}

NamedFields fields_of(VocabConfig& c) {
  return {{"tile", {&c.tile_rows, &c.tile_vocab}},
          {"tile_k", c.tile_k, 0},
          {"stages", c.num_stages, 0},
          {"workers", c.num_workers}};
}

}  // namespace stretto
