// Keys or values in the pages of a cache, as the programs over it declare, store and load them: in
// the dtype of the rows, or as e4m3 with a scale for each token of each KV head. A scale comes from
// its row alone, so what is cached of a token depends on nothing beside it.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/lang/program_builder.h"

namespace stretto {

// What a cache is declared with: k_pages, v_pages [entries, page, head_dim] and, as e4m3, k_scales,
// v_scales [entries, page, 1] f32. A number of the cache times its row's scale is what it stands
// for; rows are scaled so that their largest number is 448, the largest of e4m3.
struct CachedRowsDesc {
  DType dtype = DType::kF32;  // of the rows
  bool fp8 = false;
  std::int64_t entries = 1, page = 1, head_dim = 1;
};

class CachedRows {
 public:
  CachedRows() = default;
  // `kind`: "k" or "v", the beginning of the names. Written: state, which store() may change.
  CachedRows(ProgramBuilder& p, const std::string& kind, const CachedRowsDesc& desc, bool written);

  // Rows [heads, head_dim] of one token, of the KV heads entry .. entry + heads - 1.
  void store(const Index& entry, const Index& row, std::int64_t heads, const Value& rows) const;
  // Rows row .. row + count - 1 of an entry, up to row `end`: [count, head_dim] in desc.dtype.
  Value load(const Index& entry, const Index& row, std::int64_t count, const Index& end) const;
  // The same as [head_dim, count].
  Value load_transposed(const Index& entry, const Index& row, std::int64_t count,
                        const Index& end) const;

 private:
  ProgramBuilder* p_ = nullptr;
  CachedRowsDesc d_;
  TensorRef pages_, scales_;
};

}  // namespace stretto
