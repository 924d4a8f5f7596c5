// A plan's results as tensors of PyTorch, made in one go without its Python functions. Each has
// memory of its own, as PyTorch asks of operators. Comes between torch_inputs.h and plan_cache.h.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "torch_abi.h"

namespace stretto::python {

class TorchResults {
 public:
  // Like these tensors; null where this PyTorch has not all that it takes.
  static std::unique_ptr<const TorchResults> like(std::shared_ptr<const TorchAbi> abi,
                                                  std::span<const nanobind::object> tensors);

  // New ones, as many, by place. False where one cannot be made.
  bool make(nanobind::object* made) const;

 private:
  explicit TorchResults(std::shared_ptr<const TorchAbi> abi) : abi_(std::move(abi)) {}

  std::shared_ptr<const TorchAbi> abi_;
  std::vector<TensorLike> results_;
};

}  // namespace stretto::python
