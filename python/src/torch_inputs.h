// What PyTorch's dispatcher passes to a kernel of the stable ABI: what its schema says that it is,
// who owns it, what a plan's key says of it, and as objects of Python. Comes between torch_abi.h
// and torch_operators.h.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan_cache.h"
#include "torch_abi.h"

namespace stretto::python {

struct Schema {
  enum class Type : std::uint8_t { kTensor, kInt, kBool, kFloat, kText, kInts };
  struct Argument {
    Type type;
    bool may_be_missing;  // "?"
  };
  static constexpr std::size_t kMaxArguments = 16;

  std::string name;
  std::vector<Argument> arguments;
  std::size_t group = kMaxArguments;  // the argument that names the group, if one does

  // As torch.library has it, of arguments without defaults; InternalError for what is not known
  // here.
  static Schema parse(std::string_view text);
};

class Inputs {
 public:
  // Takes over what is on the stack.
  Inputs(const TorchAbi& abi, const Schema& schema, StableValue* stack);
  ~Inputs();
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  // "" where no argument names one.
  std::string_view group() const;
  // Makes them the rest of the call's key, and the tensors its arrays. The group is in no key.
  // False where the call cannot have a plan.
  bool describe(const PlanCache& plans, PlanCache::Call* call) const;
  nanobind::tuple to_python() const;

 private:
  void* handle(std::size_t i) const { return reinterpret_cast<void*>(values_[i]); }
  bool describe_one(std::size_t i, const PlanCache& plans, PlanCache::Call* call) const;
  bool describe_list(void* list, CallKey* key) const;
  std::string_view text(std::size_t i) const;
  nanobind::object to_python(std::size_t i) const;

  const TorchAbi& abi_;
  const Schema& schema_;
  StableValue values_[Schema::kMaxArguments];
  bool is_there_[Schema::kMaxArguments];
};

// A tensor that this owns.
class Tensor {
 public:
  Tensor(const TorchAbi& abi, TensorHandle handle) : handle_(handle, abi.delete_tensor) {}
  // Of a torch.Tensor; InternalError for another object.
  static Tensor of_python(const TorchAbi& abi, nanobind::handle object);

  TensorHandle get() const { return handle_.get(); }
  StableValue release() { return reinterpret_cast<StableValue>(handle_.release()); }

 private:
  std::unique_ptr<void, int (*)(TensorHandle)> handle_;
};

// As Python has it; the interpreter's lock is held.
nanobind::object object_of(const TorchAbi& abi, TensorHandle tensor);

// What a kernel's function of the ABI returned; InternalError where it failed.
void check_stable(int status, const char* what);

}  // namespace stretto::python
