#include "stretto/ops/attention/paged_write.h"

#include <fmt/format.h>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/attention_check.h"
#include "stretto/ops/attention/cached_rows.h"

namespace stretto {
namespace {

HeadSplit split_of(const PagedWriteDesc& d) {
  return split_heads({.num_heads = d.num_heads,
                      .num_kv_heads = d.num_kv_heads,
                      .head_dim = d.head_dim,
                      .world_size = d.world_size});
}

// Whether a rank's query heads fall on its KV heads in runs of the same length.
bool in_equal_runs(const PagedWriteDesc& d) {
  int group = d.num_heads / d.num_kv_heads, heads = split_of(d).heads_per_rank;
  return heads % group == 0 || group % heads == 0;
}

void check(const PagedWriteDesc& d, const PagedWriteConfig& c) {
  FieldCheck need{"paged_write"};
  need.at_least_one({{"m", d.m},
                     {"page", d.page},
                     {"num_pages", d.num_pages},
                     {"head_dim", d.head_dim},
                     {"world_size", d.world_size},
                     {"num_workers", c.num_workers}});
  need.heads(d.num_heads, d.num_kv_heads);
}

}  // namespace

NamedFields fields_of(PagedWriteDesc& d) {
  return {{"m", d.m},
          {"page", d.page},
          {"num_pages", d.num_pages},
          {"num_heads", d.num_heads},
          {"num_kv_heads", d.num_kv_heads},
          {"head_dim", d.head_dim},
          {"fp8", d.fp8},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}")};
}

int cached_heads(const PagedWriteDesc& d) {
  HeadSplit split = split_of(d);
  return in_equal_runs(d) ? split.kv_heads_per_rank : split.heads_per_rank;
}

Program paged_write(const PagedWriteDesc& d, const PagedWriteConfig& cfg) {
  check(d, cfg);
  HeadSplit split = split_of(d);
  const std::int64_t kv = split.kv_heads_per_rank, cached = cached_heads(d);
  ProgramBuilder p(d.fp8 ? "paged_write_fp8" : "paged_write", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef slots = p.table("slots", {m}, {ContractKind::kPermutation, -1, d.num_pages * d.page});
  TensorRef k_rows = p.input("k_rows", d.dtype, {kv, d.m, d.head_dim});
  TensorRef v_rows = p.input("v_rows", d.dtype, {kv, d.m, d.head_dim});
  CachedRowsDesc cache{.dtype = d.dtype,
                       .fp8 = d.fp8,
                       .entries = d.num_pages * cached,
                       .page = d.page,
                       .head_dim = d.head_dim};
  CachedRows k(p, "k", cache, true), v(p, "v", cache, true);
  auto copy = [&](const CachedRows& pages, const TensorRef& rows, const Index& to,
                  const Index& slot, const Index& from, const Index& row, std::int64_t heads) {
    pages.store(to, slot, heads,
                p.load(rows.tile({from, row, 0}, heads, d.head_dim).rows_along(0)));
  };
  p.role("write", Resource::sms(cfg.num_workers), p.range(m), [&](const Tile& t) {
    Index slot = p.let("slot", p.read(slots, {t.index}));
    p.when(slot >= 0, [&] {
      Index entry = p.let("entry", slot / d.page * cached), row = p.let("row", slot % d.page);
      if (in_equal_runs(d)) {
        copy(k, k_rows, entry, row, 0, t.index, kv);
        copy(v, v_rows, entry, row, 0, t.index, kv);
        return;
      }
      Index group = d.num_heads / d.num_kv_heads, last = d.num_heads - 1;
      Index first = p.let("first", p.rank() * split.heads_per_rank);
      p.loop(cached, [&](const Index& h) {
        Index from = p.let("from", min(first + h, last) / group - min(first, last) / group);
        copy(k, k_rows, entry + h, row, from, t.index, 1);
        copy(v, v_rows, entry + h, row, from, t.index, 1);
      });
    });
  });
  return p.finish();
}

NamedFields fields_of(PagedWriteConfig& c) { return {{"workers", c.num_workers}}; }

}  // namespace stretto
