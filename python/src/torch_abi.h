// PyTorch's stable ABI: C functions by which operators are registered and tensors read, found at
// run time in the PyTorch that the process has loaded, so that a build neither needs PyTorch nor is
// for one of its versions. torch_operators.h uses them. Declarations after
// torch/csrc/inductor/aoti_torch/c/ shim.h and torch/csrc/stable/c/shim.h of PyTorch 2.10 to 2.15,
// what a StableIValue holds after torch/csrc/stable/stableivalue_conversions.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "array_view.h"
#include "plan_cache.h"

namespace stretto::python {

// An argument or result of a kernel. Little-endian bits of an int64, a double or a bool; an owned
// handle of a tensor, a string or a list of values; of what may be missing an owned address of a
// value, or null.
using StableValue = std::uint64_t;
// The inputs are there, the results take their places.
using StableKernel = void (*)(StableValue* stack, std::uint64_t num_inputs,
                              std::uint64_t num_outputs);
// As which the kernels are registered: what later versions change they translate.
inline constexpr std::uint64_t kStableVersion =
    (std::uint64_t{2} << 56) | (std::uint64_t{10} << 48);

// A handle that owns a tensor; functions take it without taking it over, unless they say so.
using TensorHandle = void*;

// Functions return 0, or another number where they failed.
struct TorchAbi {
  // Null where PyTorch is not loaded, or has not all of them (strings and lists came with 2.10).
  static std::unique_ptr<const TorchAbi> find();

  int (*new_library)(const char* name, const char* file, std::uint32_t line, void** library);
  int (*new_kernels)(const char* name, const char* key, const char* file, std::uint32_t line,
                     void** library);
  int (*define)(void* library, const char* schema);
  int (*add_kernel)(void* library, const char* name, StableKernel kernel, std::uint64_t version);

  int (*new_handle)(TensorHandle tensor, TensorHandle* same);
  int (*delete_tensor)(TensorHandle tensor);
  int (*data)(TensorHandle tensor, void** address);
  int (*num_dims)(TensorHandle tensor, std::int64_t* num);
  int (*shape)(TensorHandle tensor, std::int64_t** borrowed);
  int (*strides)(TensorHandle tensor, std::int64_t** borrowed);
  int (*dtype)(TensorHandle tensor, std::int32_t* number);
  int (*device_type)(TensorHandle tensor, std::int32_t* number);
  int (*device_index)(TensorHandle tensor, std::int32_t* index);
  int (*layout)(TensorHandle tensor, std::int32_t* number);
  int (*empty_strided)(std::int64_t num_dims, const std::int64_t* shape,
                       const std::int64_t* strides, std::int32_t dtype, std::int32_t device_type,
                       std::int32_t device_index, TensorHandle* made);
  std::size_t (*element_bytes)(std::int32_t dtype);
  std::int32_t (*cpu)();
  std::int32_t (*cuda)();
  std::int32_t (*strided)();

  int (*string_length)(void* string, std::size_t* length);
  int (*string_data)(void* string, const char** borrowed);
  int (*delete_string)(void* string);
  int (*list_size)(void* list, std::size_t* size);
  int (*list_item)(void* list, std::size_t index, StableValue* item);
  int (*delete_list)(void* list);

  // Of later versions; null before. Tags from 2.12 on, deletion from 2.13, Python objects, for
  // which the interpreter's lock is held, from 2.14.
  int (*define_with_tags)(void* library, const char* schema, const std::int32_t* tags,
                          std::int32_t num_tags);
  std::int32_t (*pt2_compliant_tag)();
  int (*delete_value)(StableValue* value);
  int (*to_python)(TensorHandle tensor, void* type, void** object);
  int (*from_python)(void* object, TensorHandle* tensor);
  // PyTorch's C++ function behind to_python, of which the stable ABI knows that a handle is the
  // address of what it takes. Null where a version calls it otherwise.
  void* (*wrap)(TensorHandle tensor);

  // Whether tensors become Python's objects without Python code.
  bool wraps() const { return to_python != nullptr || wrap != nullptr; }

  // False for tensors that have no elements in memory on a CPU or GPU as they are.
  bool read(TensorHandle tensor, ArrayView* view) const;
  // What makes one like it, which read() reads.
  TensorLike like(TensorHandle tensor) const;
};

}  // namespace stretto::python
