// New keys and values of many sequences into a cache of pages: each row to the slot that a table
// gives it. What follows it in a step is paged_attention (packed_attention.h) and paged_decode.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct PagedWriteDesc {
  DType dtype = DType::kF32;   // the rows'
  bool fp8 = false;            // the cache is e4m3 with scales (cached_rows.h)
  std::int64_t m = 1;          // bound of the rows
  std::int64_t page = 1;       // tokens of a page
  std::int64_t num_pages = 1;  // the cache's
  int num_heads = 1;           // query heads over all ranks
  int num_kv_heads = 1;        // divides num_heads
  std::int64_t head_dim = 2;
  int world_size = 1;
  friend bool operator==(const PagedWriteDesc&, const PagedWriteDesc&) = default;
};

struct PagedWriteConfig {
  int num_workers = 1;
  friend bool operator==(const PagedWriteConfig&, const PagedWriteConfig&) = default;
};
NamedFields fields_of(PagedWriteConfig& config);

NamedFields fields_of(PagedWriteDesc& desc);
PagedWriteConfig default_config(const PagedWriteDesc& desc, Target target);

// Heads of a rank in the cache, the same number on each: its query heads are theirs in equal runs.
// Where a rank's query heads do not fall on KV heads so, each of them has its own copy.
int cached_heads(const PagedWriteDesc& desc);

// Extent m. Table slots [m]: row r of k_rows, v_rows [Hkv, desc.m, head_dim] (attention.h:
// split_heads) goes to row slots[r] % page of page slots[r] / page of k_pages, v_pages
// [num_pages * cached_heads, page, head_dim], where head h of page i is entry
// i * cached_heads + h; with fp8 they are e4m3 beside k_scales, v_scales (cached_rows.h). A row
// whose slot is -1 goes nowhere. Two rows with the same slot are a Fault with the table and one of
// the two. UserError naming a bad field.
Program paged_write(const PagedWriteDesc& desc, const PagedWriteConfig& config);

// m: rows, n: tokens of the cache, k: head size.
OperatorInfo paged_write_info();
OperatorInfo paged_write_fp8_info();

}  // namespace stretto
