// One product for each expert, over rows that are sorted by expert or have a block of their own:
// the part that programs of such products have in common. grouped_gemm.cc stores what it gives;
// sorted_gemm_rs.cc adds it up in the same launch.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/moe/grouped_gemm.h"

namespace stretto {

// UserError naming the field.
void check(const GroupedDesc& d, const GroupedConfig& c);

// Declares the inputs of the products (grouped_gemm.h). Descs and configs outlive it.
class ExpertProducts {
 public:
  // m: tokens, or rows of an expert, in this launch.
  ExpertProducts(ProgramBuilder& p, const GroupedDesc& d, const GroupedConfig& c, const Index& m);

  Index all_rows() const { return d_.masked() ? m_ * split_.share() : m_ * d_.rows_per_token; }
  // Where rows are dealt out by a table: the first of each expert, and the end of the last.
  const TensorRef& offsets() const { return counts_; }

  // Columns from `col` on of an expert, the own-th of this rank's: every row_parts-th tile of rows,
  // from `part` on.
  struct Part {
    Index own, expert, part, col;
  };
  // Stores them to c [all_rows(), n]; of experts that do not exist nothing.
  void multiply_into(const TensorRef& c, const Part& at) const;

 private:
  struct Rows {
    Index first, end;
  };
  Rows rows_of(const Index& own, const Index& expert) const;
  Index most_rows() const { return d_.masked() ? m_ : all_rows(); }  // of an expert
  void multiply_all(const TensorRef& c, const Part& at) const;
  // Rows from `row` on, columns from `col` on: f32 [bm, bn], or with swap_ab [bn, bm].
  Value tile(const Index& own, const Index& row, const Index& end, const Index& col) const;

  ProgramBuilder& p_;
  const GroupedDesc& d_;
  const GroupedConfig& cfg_;
  ExpertSplit split_;
  Index m_;
  TensorRef counts_, tokens_, a_, scale_a_;
  std::vector<TensorRef> weights_, scales_, biases_;
};

}  // namespace stretto
