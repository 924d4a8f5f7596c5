#include "torch_results.h"

#include "torch_inputs.h"

namespace nb = nanobind;

namespace stretto::python {

std::unique_ptr<const TorchResults> TorchResults::like(std::shared_ptr<const TorchAbi> abi,
                                                       std::span<const nb::object> tensors) {
  if (abi == nullptr || !abi->wraps()) return nullptr;
  std::unique_ptr<TorchResults> results(new TorchResults(std::move(abi)));
  for (const nb::object& tensor : tensors) {
    Tensor handle = Tensor::of_python(*results->abi_, tensor);
    ArrayView view;
    if (!results->abi_->read(handle.get(), &view)) return nullptr;
    results->results_.push_back(results->abi_->like(handle.get()));
  }
  return results;
}

bool TorchResults::make(nb::object* made) const {
  std::vector<Tensor> tensors;
  tensors.reserve(results_.size());
  {
    nb::gil_scoped_release unlocked;  // memory may have to wait for what another thread launches
    for (const TensorLike& like : results_) {
      TensorHandle handle = nullptr;
      if (abi_->empty_strided(static_cast<std::int64_t>(like.shape.size()), like.shape.data(),
                              like.strides.data(), like.dtype, like.device_type, like.device_index,
                              &handle) != 0) {
        return false;
      }
      tensors.emplace_back(*abi_, handle);
    }
  }
  for (const Tensor& tensor : tensors) *made++ = object_of(*abi_, tensor.get());
  return true;
}

}  // namespace stretto::python
