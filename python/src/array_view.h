// What a launch needs of a Python array, read without running Python code: NumPy arrays by their C
// structure, PyTorch tensors through the table of functions of DLPack 1.2 that the type shows.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

namespace stretto::python {

struct ArrayView {
  enum class Kind : std::uint8_t { kNumpy, kTorch };
  Kind kind = Kind::kNumpy;
  std::byte* data = nullptr;
  std::uint64_t dtype = 0;  // the same for the same element type of a kind
  int num_dims = 0;
  const std::int64_t* shape = nullptr;    // [num_dims], the array's own
  const std::int64_t* strides = nullptr;  // [num_dims] in bytes (NumPy) or elements
  std::int64_t stride_bytes = 1;          // of one in strides
  bool is_writable = true;
  int device = -1;  // the GPU; -1: the host

  bool has_elements() const;
  // Where the last element begins; 0 where there is none, or a stride is negative.
  std::size_t last_offset_bytes() const;
  // Whether an element of one may be an element of the other, by where they begin and end.
  bool may_overlap(const ArrayView& other) const;
};

class ArrayReader {
 public:
  explicit ArrayReader(nanobind::object ndarray) : ndarray_(std::move(ndarray)) {}

  // Tensors are read once their classes are known. Does nothing where PyTorch has no such table.
  void know_torch(nanobind::object tensor, nanobind::object parameter,
                  nanobind::object is_grad_enabled, nanobind::object increment_version);

  // False, and no Python error, for what is not read this way: other types, subclasses, tensors on
  // devices that are no GPUs, tensors that a gradient is asked of or whose elements are not what is
  // in memory, elements that are not aligned.
  bool read(nanobind::handle array, ArrayView* view) const;
  // The same of an array that was made just now, of which no gradient is asked and whose elements
  // are what is in memory.
  bool read_made(nanobind::handle array, ArrayView* view) const;
  // Whether no element of an array of `written` may be another's of these or of `read`. False, too,
  // where one is not read this way.
  bool are_apart(const nanobind::list& written, const nanobind::list& read) const;
  // Autograd is told that a tensor has been written to, or each of a tuple.
  void count_write(nanobind::handle tensors) const;
  // NumPy's arrays are taken for a simulated GPU's, whose current stream is this one: of tests.
  void take_numpy_for(int device, std::uintptr_t stream) {
    numpy_device_ = device;
    numpy_stream_ = stream;
  }
  // PyTorch's current stream on a GPU; false where it does not tell.
  bool current_stream(int device, std::uintptr_t* stream) const;

 private:
  using ReadTensor = int (*)(void* tensor, nanobind::dlpack::dltensor* out);
  using ReadStream = int (*)(int device_type, std::int32_t device, void** out);

  bool read_numpy(PyObject* array, ArrayView* view) const;
  bool read_torch(PyObject* tensor, ArrayView* view) const;
  // Where its elements are, whatever is asked of it.
  bool read_memory(PyObject* tensor, ArrayView* view, bool* is_complex) const;
  bool wants_gradient(PyObject* tensor) const;
  // Whether its elements are negatives, or conjugates, of what is in memory.
  bool is_lazy(PyObject* tensor, bool is_complex) const;
  static bool says(PyObject* tensor, const nanobind::object& method);

  nanobind::object ndarray_, tensor_, parameter_, is_grad_enabled_, increment_version_;
  nanobind::object requires_grad_, is_neg_, is_conj_;  // names
  ReadTensor read_tensor_ = nullptr;
  ReadStream read_stream_ = nullptr;
  int numpy_device_ = -1;
  std::uintptr_t numpy_stream_ = 0;
};

}  // namespace stretto::python
