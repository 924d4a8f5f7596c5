// The weight side of out = f(a * b^T), which all GEMM operators share: the inputs it needs, one
// tile of the product, and how tiles are chosen. The operators add where `a` comes from and where
// the result goes.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/harness/target.h"

namespace stretto {

struct LinearDesc {
  std::int64_t n = 0, k = 0;
  DType dtype = DType::kF32;  // of weights and bias; `a` may have another
  bool bias = false;          // + bias[n]
  bool swiglu = false;        // two weights: silu(a * b_gate^T) * (a * b_up^T)
};

// One step of the main loop: [bm, bk] * [bn, bk]^T.
struct GemmTile {
  std::int64_t bm = 0, bn = 0, bk = 0;
};

class Linear {
 public:
  // Declares the inputs b [n, k] and bias [n], or b_gate, b_up, bias_gate and bias_up.
  Linear(ProgramBuilder& p, const LinearDesc& desc);

  // Columns [col, col + bn) of f(a * b^T), fp32 [bm, bn]. a(k) is the [bm, bk] slice of the rows
  // wanted that starts at column k.
  Value product(const GemmTile& tile, const Index& col,
                const std::function<Slice(const Index& k)>& a) const;

  // The same in steps, for rows that lie in one of several places: sums of zero, [bm, bn] fp32, one
  // for each weight; a main loop that adds to them; what they make.
  std::vector<Value> sums(const GemmTile& tile) const;
  void accumulate(std::vector<Value>& sums, const GemmTile& tile, const Index& col,
                  const std::function<Slice(const Index& k)>& a) const;
  Value finish(std::vector<Value> sums, const GemmTile& tile, const Index& col) const;

 private:
  ProgramBuilder* p_;
  LinearDesc desc_;
  std::vector<TensorRef> weights_, biases_;
};

// Tiles for a CPU rank: the whole of a decode step's rows at once, else up to 256 x 512, and
// several tiles wherever the matrix is large enough for communication to hide behind.
GemmTile default_tile(std::int64_t m, std::int64_t n, std::int64_t k);

// The main loop of a GEMM on a Hopper GPU: 16-bit factors through the tensor core, with slices of
// both loaded ahead; others by the threads' own arithmetic, on tiles that leave room in registers.
// Up to kFewRows rows read every weight once, so that bandwidth is all that counts: columns are cut
// so finely that every SM reads its share, and as much as shared memory holds is under way.
inline constexpr std::int64_t kFewRows = 64;
struct GpuLoop {
  GemmTile tile;
  int num_stages = 0;
};
struct GpuLoopDesc {
  std::int64_t m = 0, n = 0;
  DType a_dtype = DType::kF32, b_dtype = DType::kF32;
  bool swiglu = false;  // two products of the same rows
};
GpuLoop gpu_loop(const GpuLoopDesc& desc);

struct NamedSize {
  const char* name;
  std::int64_t value;
};
// UserError "<op>: <name> is <value>, ..." for the first value below `least`.
void check_sizes(const std::string& op, std::initializer_list<NamedSize> sizes,
                 std::int64_t least = 1);
// UserError unless f32, bf16 or f16.
void check_dtype(const std::string& op, const char* field, DType dtype);

}  // namespace stretto
