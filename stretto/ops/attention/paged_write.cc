#include "stretto/ops/attention/paged_write.h"

#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/field_check.h"

namespace stretto {
namespace {

HeadSplit split_of(const PagedWriteDesc& d) {
  return split_heads({.num_heads = d.num_heads,
                      .num_kv_heads = d.num_kv_heads,
                      .head_dim = d.head_dim,
                      .world_size = d.world_size});
}

void check(const PagedWriteDesc& d) {
  FieldCheck need{"paged_write"};
  need.at_least_one({{"m", d.m},
                     {"page", d.page},
                     {"num_pages", d.num_pages},
                     {"head_dim", d.head_dim},
                     {"world_size", d.world_size}});
  need.heads(d.num_heads, d.num_kv_heads);
}

}  // namespace

int cached_heads(const PagedWriteDesc& d) {
  HeadSplit split = split_of(d);
  int group = d.num_heads / d.num_kv_heads, heads = split.heads_per_rank;
  bool equal_runs = heads % group == 0 || group % heads == 0;
  return equal_runs ? split.kv_heads_per_rank : heads;
}

Program paged_write(const PagedWriteDesc& d) {
  check(d);
  HeadSplit split = split_of(d);
  const std::int64_t kv = split.kv_heads_per_rank, cached = cached_heads(d);
  ProgramBuilder p("paged_write", d.world_size);
  Index m = p.extent("m", d.m);
  TensorRef slots = p.table("slots", {m}, {ContractKind::kRange, 0, d.num_pages * d.page});
  TensorRef k_rows = p.input("k_rows", d.dtype, {kv, d.m, d.head_dim});
  TensorRef v_rows = p.input("v_rows", d.dtype, {kv, d.m, d.head_dim});
  TensorRef k_pages = p.state("k_pages", d.dtype, {d.num_pages * cached, d.page, d.head_dim});
  TensorRef v_pages = p.state("v_pages", d.dtype, {d.num_pages * cached, d.page, d.head_dim});
  p.role("write", Resource::sms(1), p.range(m), [&](const Tile& t) {
    Index slot = p.let("slot", p.read(slots, {t.index}));
    Index entry = p.let("entry", slot / d.page * cached), row = p.let("row", slot % d.page);
    auto copy = [&](const TensorRef& pages, const TensorRef& rows, const Index& to,
                    const Index& from, std::int64_t heads) {
      p.store(pages.tile({to, row, 0}, heads, d.head_dim).rows_along(0),
              p.load(rows.tile({from, t.index, 0}, heads, d.head_dim).rows_along(0)));
    };
    p.worker_fence();  // the slot may be that of an earlier row
    if (cached == kv) {
      copy(k_pages, k_rows, entry, 0, kv);
      copy(v_pages, v_rows, entry, 0, kv);
      return;
    }
    Index group = d.num_heads / d.num_kv_heads, last = d.num_heads - 1;
    Index first = p.let("first", p.rank() * split.heads_per_rank);
    p.loop(cached, [&](const Index& h) {
      Index from = p.let("from", min(first + h, last) / group - min(first, last) / group);
      copy(k_pages, k_rows, entry + h, from, 1);
      copy(v_pages, v_rows, entry + h, from, 1);
    });
  });
  return p.finish();
}

}  // namespace stretto
