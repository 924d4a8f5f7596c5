// Softmax over keys, and the sum of values that it weighs, block by block of keys: the inner part
// of every attention program (FlashAttention, Dao et al. 2022, algorithm 1). Sums are fp32; weights
// are rounded to the dtype of the values before they multiply them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "stretto/lang/program_builder.h"

namespace stretto {

// The score of a key that a query does not see. Finite, so that a row whose whole block is masked
// gives exp(0) of weights that a later block scales to zero; a power of two, so that its product
// with the scale is exact and their difference 0.
inline constexpr double kMaskedScore = -0x1p100;

// What scores are multiplied by: `scale`, or 1 / sqrt(head_dim).
double score_scale(std::optional<double> scale, std::int64_t head_dim);

// Whether GPUs multiply weights of so many keys by values on the tensor core, in roles with stages:
// then the sum of the weights costs next to nothing there (OnlineSoftmax::Options).
inline bool multiplied_by_tensor_core(DType dtype, std::int64_t keys, std::int64_t head_dim) {
  return size_bytes(dtype) == 2 && keys % 16 == 0 && head_dim % 16 == 0;
}

class OnlineSoftmax {
 public:
  struct Options {
    DType dtype = DType::kF32;  // of the values
    std::int64_t rows = 1;      // queries
    std::int64_t head_dim = 1;
    double scale = 1;  // of scores, any finite number
    // Weights add up beside the values that they multiply, on the tensor core, where they are
    // rounded: no load(), and no merge() of what lies in memory.
    bool sums_by_product = false;
    // Keys come in runs (attention_runs.h): each adds up from nothing, and they are added up in
    // their order, as merge() does it. add() is told which steps begin one, and finish() is last.
    bool in_runs = false;
  };
  // Variables of the block in which it is made.
  OnlineSoftmax(ProgramBuilder& p, const Options& options);

  // Of products of queries and keys, what add() takes once scores that do not count are masked.
  Value scores(const Value& products) const;
  // Scores of the queries and a block of keys [rows, n], and the values of these keys
  // [n, head_dim].
  void add(const Value& scores, const Slice& values);
  // The same; `values` loads them where they are needed. Where it computes them, too, and so takes
  // registers, weights are rounded before.
  void add(const Value& scores, const std::function<Value()>& values, bool computed = false,
           const Index& begins_run = {});
  void finish();

  // Goes on with what another left in memory: its sum(), weight() and peak().
  struct State {
    Slice sum, weight, peak;  // f32 [rows, head_dim], [rows, 1], [rows, 1]
  };
  void load(const State& state);
  // Adds what others made of other keys, in their order; all are read before the first is added.
  void merge(const std::vector<State>& states);
  void store(const State& state) const;

  Value sum() const;        // [rows, head_dim], not divided by
  Value weight() const;     // [rows, 1]
  Value log2_peak() const;  // [rows, 1]: both are in units of two to this power
  Value mean() const;       // [rows, head_dim]: the attention of the keys so far
  Value lse() const;        // [rows, 1]: log of the sum of exp(scale * score)

 private:
  // What a run leaves.
  struct Part {
    Value sum, weight, peak;
  };
  void begin(Part& part, bool by_product) const;
  void merge(Part& all, const Value& sum, const Value& weight, const Value& peak) const;

  ProgramBuilder& p_;
  Options options_;
  // Together the scale. Peaks are multiplied by the second alone, which is positive and neither so
  // small that a masked score would count nor so large that it would overflow.
  double factor_ = 1, scale_ = 1;
  Part now_;         // a product makes the weight as columns of the sum
  Part all_;         // of the runs before
  Value last_peak_;  // before this step
};

}  // namespace stretto
