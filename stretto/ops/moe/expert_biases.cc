#include "stretto/ops/moe/expert_biases.h"

namespace stretto {

std::vector<TensorRef> bias_inputs(ProgramBuilder& p, bool bias, bool swiglu, DType dtype,
                                   const std::vector<Index>& shape) {
  std::vector<TensorRef> biases;
  if (!bias) return biases;
  for (const char* name : swiglu ? std::vector{"bias_gate", "bias_up"} : std::vector{"bias"}) {
    biases.push_back(p.input(name, dtype, shape));
  }
  return biases;
}

void add_bias(ProgramBuilder& p, const TensorRef& bias, const Index& expert, const Index& col,
              Value& sum) {
  sum = sum + cast(p.load(bias.tile({expert, col}, 1, sum.cols())), DType::kF32);
}

void add_biases(ProgramBuilder& p, const std::vector<TensorRef>& biases, const Index& expert,
                const Index& col, std::vector<Value>& sums) {
  for (std::size_t i = 0; i < biases.size(); ++i) add_bias(p, biases[i], expert, col, sums[i]);
}

}  // namespace stretto
