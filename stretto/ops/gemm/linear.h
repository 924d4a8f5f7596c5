// The weight side of out = f(a * b^T), which all GEMM operators share: the inputs it needs, one
// tile of the product, and how tiles are chosen. The operators add where `a` comes from and where
// the result goes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/main_loop.h"
#include "stretto/ops/operator/field_check.h"
#include "stretto/ops/operator/rows_of.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

// How 8-bit factors stand for numbers: f32 scales multiply their elements.
enum class Scaling : std::uint8_t {
  kNone,
  // scale_a [m, 1] and scale_b [1, n], as torch._scaled_mm takes them. The tensor core sums over
  // all of k by itself, with some 14 bits (torch's use_fast_accum).
  kRowWise,
  // scale_a [m, ceil(k/128)] and scale_b [ceil(n/128), ceil(k/128)], as in DeepSeek-V3 (arXiv
  // 2412.19437, section 3.3): the product of every 128 of k is scaled, then added in fp32.
  kBlock,
};
inline constexpr std::int64_t kScaleBlock = 128;
const char* name(Scaling scaling);
NamedField scaling_field(Scaling& scaling);  // "row-wise", or nothing
NamedField weights_field(bool& b_kn);        // "b[k,n]", or nothing
// What the text of every desc of a product begins with; `form`: of the result's dtype, "c={}".
template <typename Desc>
NamedFields product_fields(Desc& d, DType& result, const char* form) {
  return {NamedField("world_size", d.world_size).as("P={}"),
          {"m", d.m},
          {"n", d.n},
          {"k", d.k},
          NamedField("a_dtype", d.a_dtype).as("a={}"),
          NamedField("b_dtype", d.b_dtype).as("b={}"),
          NamedField("result_dtype", result).as(form)};
}
// Columns of scale_a.
std::int64_t scale_columns(Scaling scaling, std::int64_t k);

struct LinearDesc {
  std::int64_t n = 0, k = 0;
  DType dtype = DType::kF32;  // weights and bias (bf16 beside fp8); `a` may have another
  bool bias = false;          // + bias[n]
  bool swiglu = false;        // two weights: silu(a * b_gate^T) * (a * b_up^T)
  Scaling scaling = Scaling::kNone;
  bool b_kn = false;     // weights [k, n] instead of [n, k], without scaling
  bool swap_ab = false;  // sums are [bn, bm], the weights their left factor; without scaling
};

// Where the rows of a tile lie: a(k) is their [bm, bk] slice that starts at column k. With scaling,
// scale(i) is the [bm, 1] slice of column i of scale_a.
struct TileRows {
  std::function<Slice(const Index& k)> a;
  std::function<Slice(const Index& i)> scale;
};

// Rows of `a` from `row` on, with the scales that `scale` has of them, if any; rows at or past
// `end`, where given, do not exist.
struct LinearRows {
  Index row;
  std::optional<Index> end;
};
TileRows tile_rows(const TensorRef& a, const TensorRef& scale, const GemmTile& tile,
                   const LinearRows& range);
// Declares the input scale_a [rows, scale_columns(scaling, k)]; nothing without scaling.
TensorRef scale_input(ProgramBuilder& p, Scaling scaling, const Index& rows, std::int64_t k,
                      Space space = Space::kLocal);

// Steps [begin, end) of the main loop, of ceil(k / bk).
struct StepRange {
  Index begin, end;
};

// Columns [first, first + count) of k, of a factor that lies by itself: rows.a(0) and rows.scale(0)
// are at its beginning. With scales of blocks both are multiples of kScaleBlock.
struct ColumnRange {
  Index first;
  std::int64_t count;
};

class Linear {
 public:
  // Declares the inputs b [n, k] or [k, n], bias [n] and scale_b, or b_gate, b_up, bias_gate ...
  // scale_b_up.
  Linear(ProgramBuilder& p, const LinearDesc& desc);

  // Columns [col, col + bn) of f(a * b^T), f32 [bm, bn]; f64 where the factors are.
  Value product(const GemmTile& tile, const Index& col, const TileRows& rows) const;

  // The same in `parts` values of bn / parts columns each, left to right: beside one of them there
  // is room for a sum. Not for two weights.
  std::vector<Value> products(const GemmTile& tile, const Index& col, const TileRows& rows,
                              std::int64_t parts) const;

  // The same in steps, for rows that lie in one of several places or a k that is summed in parts:
  // sums of zero, [bm, bn], one for each weight; a main loop that adds to them, once (all its
  // steps or some); what they make.
  struct Sums {
    std::vector<Value> of;  // by weight, f32 or f64 [bm, bn]
    std::vector<Value>
        scales;  // by weight [1, bn], with scales of rows: there before the loop ends
  };
  Sums sums(const GemmTile& tile, const Index& col) const;
  void accumulate(Sums& sums, const GemmTile& tile, const Index& col, const TileRows& rows,
                  const std::optional<StepRange>& steps = {}) const;
  // The product of these columns of k, in ceil(count / bk) steps.
  void accumulate(Sums& sums, const GemmTile& tile, const Index& col, const TileRows& rows,
                  const ColumnRange& columns) const;
  Value finish(Sums sums, const GemmTile& tile, const Index& col) const;

 private:
  // Sums of the columns from `col` on. They stay the caller's variables: what is assigned to them
  // in a branch or a loop has to be seen after it.
  struct Part {
    Sums* sums;
    Index col;
  };
  void accumulate(const std::vector<Part>& parts, const GemmTile& tile, const TileRows& rows,
                  const std::optional<StepRange>& steps,
                  const std::optional<ColumnRange>& columns = {}) const;
  // The step of the weight's columns from `col` on, [bk, bn].
  Value step_of_weight(const TensorRef& weight, const GemmTile& tile, const Index& col,
                       const Index& k, const std::optional<ColumnRange>& columns) const;
  ProgramBuilder* p_;
  LinearDesc desc_;
  std::vector<TensorRef> weights_, biases_, scales_;
};

// Tiles for a CPU rank: the whole of a decode step's rows at once, else up to 256 x 512, and
// several tiles wherever the matrix is large enough for communication to hide behind.
GemmTile default_tile(std::int64_t m, std::int64_t n, std::int64_t k);

// The nearest that block scales allow: one scale of the weights for a step.
GemmTile scaled_tile(GemmTile tile, Scaling scaling);

// The main loop of a GEMM on a Hopper GPU: factors of 16 and 8 bits through the tensor core, with
// slices of both loaded ahead; others by the threads' own arithmetic, on tiles that leave room in
// registers. Up to kFewRows rows read every weight once, so that bandwidth is all that counts:
// columns are cut so finely that every SM reads its share, and as much as shared memory holds is
// under way.
inline constexpr std::int64_t kFewRows = 64;
struct GpuLoopDesc {
  std::int64_t m = 0, n = 0;
  std::int64_t k = 0;  // 0: large
  DType a_dtype = DType::kF32, b_dtype = DType::kF32;
  bool swiglu = false;  // two products of the same rows
  Scaling scaling = Scaling::kNone;
  int num_sms = 0;  // that multiply, never 0
};
// The stagger (GemmConfig) that was measured to pay for a block's tile of 16-bit factors, 0 for
// none. It pays where SMs have several tiles each, so that a store has a next tile to hide behind.
int paying_stagger(const GemmTile& tile, std::int64_t num_tiles, int num_sms);

// Columns of the tiles that the busiest of the SMs multiplies.
std::int64_t columns_of_sm(std::int64_t row_tiles, std::int64_t n, std::int64_t bn, int num_sms);

// The loop of 16-bit products whose two warpgroups take tiles in turn: each has a whole tile in its
// registers, and stores it while the other multiplies.
MainLoop ping_pong_loop(std::int64_t width, int num_compute_sms);
// Widths of such tiles: five slots of the widest fill the shared memory beside what is stored.
// Weights [k, n] come in blocks of columns, of which those of 16 are slow.
std::vector<std::int64_t> ping_pong_widths(bool b_kn, std::int64_t widest = 176);
// Such a loop with the width that keeps SMs busy until the end.
MainLoop busiest_ping_pong(std::int64_t row_tiles, std::int64_t n,
                           const std::vector<std::int64_t>& widths, int num_sms);
// Whether turns were measured to pay: every SM has several tiles, and no more columns than with
// `other`, but for two per cent.
bool turns_pay(const MainLoop& loop, std::int64_t row_tiles, std::int64_t n, const GemmTile& other,
               int num_sms);

// Up to so many rows of all ranks, tiles that reach across the ranks' rows are the default of
// operators that gather or scatter rows: tiles of each rank's rows read all weights once more.
inline constexpr std::int64_t kMostRowsAcross = 256;
MainLoop gpu_loop(const GpuLoopDesc& desc);

// check_sizes() of the fields that every operator with a product of tiles has.
template <typename Desc, typename Config>
void check_product_sizes(const std::string& op, const Desc& d, const Config& c) {
  check_sizes(op, {{"world_size", rows_of(d).world_size},
                   {"m", rows_of(d).m},
                   {"n", d.n},
                   {"k", d.k},
                   {"tile.bm", c.loop.tile.bm},
                   {"tile.bn", c.loop.tile.bn},
                   {"tile.bk", c.loop.tile.bk},
                   {"num_compute_sms", c.loop.num_compute_sms},
                   {"raster", c.loop.raster}});
}
// UserError unless f32, bf16 or f16, or f64 of factors in f64.
void check_result(const std::string& op, const char* field, DType dtype, DType factors);
// UserError unless both factors are f32, bf16 or f16 without scaling, both f64, or both e4m3; and
// unless block scales fit the tile, and fp8 weights are [n, k].
struct Factors {
  DType a_dtype = DType::kF32, b_dtype = DType::kF32;
  Scaling scaling = Scaling::kNone;
  GemmTile tile;
  bool b_kn = false;
};
void check_factors(const std::string& op, const Factors& factors);

}  // namespace stretto
