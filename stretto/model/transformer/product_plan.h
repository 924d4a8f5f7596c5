// What a step's products multiply (step_plan.h): activations and weights as they are, or, where the
// model's products are e4m3, activations that a launch before the product quantises, and the scales
// of both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/model/transformer/step_builder.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto {

class ProductPlan {
 public:
  ProductPlan(const ModelShape& shape, StepBuilder& plan) : s_(shape), plan_(plan) {}

  // Sets the factors of a product's desc.
  template <typename Desc>
  void set_factors(Desc& d) const {
    const bool fp8 = s_.config->has_fp8_products();
    d.a_dtype = fp8 ? DType::kF8E4M3 : s_.dtype;
    d.b_dtype = fp8 ? DType::kF8E4M3 : s_.weight_dtype;
    d.scaling = fp8 ? Scaling::kBlock : Scaling::kNone;
  }

  // Rows that products multiply.
  struct Factor {
    const char* buffer;
    std::int64_t tokens = 0;          // the most of a launch
    std::int64_t rows_per_token = 1;  // in the buffer
    std::int64_t cols = 0;
    bool symmetric = false;  // gathered by the product
    int world_size = 0;      // of the launches; 0: the tensor-parallel ranks
  };
  // Adds what it takes to quantise them; with products of other dtypes nothing. Once a buffer.
  void prepare(const Factor& rows);
  // Before the products that read them, and after they were written.
  void quantize(const char* buffer, StepBuilder::Sizes sizes);

  // Those of a product with its rows, and with a weight.
  enum class Weight : std::uint8_t { kOnly, kGate, kUp };
  void bind_rows(const char* buffer, StepBuilder::Bindings& to) const;
  void bind_weight(Weight which, const std::string& buffer, StepBuilder::Bindings& to) const;

 private:
  struct Quantizer {
    std::string buffer;
    int program = 0;
  };
  const ModelShape& s_;
  StepBuilder& plan_;
  std::vector<Quantizer> quantizers_;
};

}  // namespace stretto
