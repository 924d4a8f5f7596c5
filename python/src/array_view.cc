#include "array_view.h"

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NO_IMPORT_ARRAY
#include <numpy/ndarraytypes.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "stretto/base/host_phases.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// DLPackExchangeAPI of dlpack.h 1.2, as the capsule "dlpack_exchange_api" holds it.
struct ExchangeTable {
  struct {
    std::uint32_t major, minor;
    const void* older;
  } header;
  void (*allocate)();
  void (*export_owned)();
  void (*import_owned)();
  int (*read_tensor)(void* tensor, nb::dlpack::dltensor* out);  // may be null
  int (*current_stream)(int device_type, std::int32_t device, void** out);
};
constexpr std::uint32_t kMajorVersion = 1;
constexpr std::int32_t kCpu = 1, kCuda = 2;
constexpr std::uint8_t kComplex = 5;

static_assert(sizeof(npy_intp) == sizeof(std::int64_t));

}  // namespace

bool ArrayView::has_elements() const {
  return std::ranges::find(shape, shape + num_dims, 0) == shape + num_dims;
}

std::size_t ArrayView::last_offset_bytes() const {
  std::int64_t bytes = 0;
  for (int d = 0; d < num_dims; ++d) {
    if (shape[d] == 0 || strides[d] < 0) return 0;
    bytes += (shape[d] - 1) * strides[d] * stride_bytes;
  }
  return static_cast<std::size_t>(bytes);
}

bool ArrayView::may_overlap(const ArrayView& other) const {
  auto ends = [](const ArrayView& view) {
    std::byte *first = view.data, *last = view.data;
    for (int d = 0; d < view.num_dims; ++d) {
      std::int64_t bytes = (view.shape[d] - 1) * view.strides[d] * view.stride_bytes;
      (bytes < 0 ? first : last) += bytes;
    }
    return std::pair(first, last);
  };
  auto [first, last] = ends(*this);
  auto [other_first, other_last] = ends(other);
  return first <= other_last && other_first <= last;
}

void ArrayReader::know_torch(nb::object tensor, nb::object parameter, nb::object is_grad_enabled,
                             nb::object increment_version) {
  nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
  if (read_tensor_ != nullptr || !PyCapsule_CheckExact(capsule.ptr())) return;
  auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) nb::raise_python_error();
  if (table->header.major != kMajorVersion || table->read_tensor == nullptr) return;
  tensor_ = std::move(tensor);
  parameter_ = std::move(parameter);
  is_grad_enabled_ = std::move(is_grad_enabled);
  increment_version_ = std::move(increment_version);
  requires_grad_ = nb::str("requires_grad");
  is_neg_ = nb::str("is_neg");
  is_conj_ = nb::str("is_conj");
  read_tensor_ = table->read_tensor;
  read_stream_ = table->current_stream;
}

bool ArrayReader::read(nb::handle array, ArrayView* view) const {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()));
  if (type == ndarray_.ptr()) return read_numpy(array.ptr(), view);
  if (read_tensor_ == nullptr || (type != tensor_.ptr() && type != parameter_.ptr())) return false;
  return read_torch(array.ptr(), view);
}

bool ArrayReader::read_made(nb::handle array, ArrayView* view) const {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()));
  if (type == ndarray_.ptr()) return read_numpy(array.ptr(), view);
  bool is_complex = false;
  return read_tensor_ != nullptr && type == tensor_.ptr() &&
         read_memory(array.ptr(), view, &is_complex);
}

bool ArrayReader::are_apart(const nb::list& written, const nb::list& others) const {
  std::vector<ArrayView> views;
  for (const nb::list* arrays : {&written, &others}) {
    for (nb::handle array : *arrays) {
      if (!read(array, &views.emplace_back())) return false;
    }
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    auto meets = [&](const ArrayView& other) { return views[i].may_overlap(other); };
    if (std::any_of(views.begin() + static_cast<std::ptrdiff_t>(i) + 1, views.end(), meets)) {
      return false;
    }
  }
  return true;
}

// Element types are singletons, but for structured ones, which then have plans of their own.
bool ArrayReader::read_numpy(PyObject* object, ArrayView* view) const {
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if ((PyArray_FLAGS(array) & NPY_ARRAY_ALIGNED) == 0) return false;
  view->kind = ArrayView::Kind::kNumpy;
  view->data = static_cast<std::byte*>(PyArray_DATA(array));
  view->dtype = reinterpret_cast<std::uintptr_t>(PyArray_DESCR(array));
  view->stride_bytes = 1;
  view->num_dims = PyArray_NDIM(array);
  view->shape = reinterpret_cast<const std::int64_t*>(PyArray_DIMS(array));
  view->strides = reinterpret_cast<const std::int64_t*>(PyArray_STRIDES(array));
  view->device = numpy_device_;
  view->is_writable = (PyArray_FLAGS(array) & NPY_ARRAY_WRITEABLE) != 0;
  return true;
}

bool ArrayReader::read_torch(PyObject* tensor, ArrayView* view) const {
  bool is_complex = false;
  return !wants_gradient(tensor) && read_memory(tensor, view, &is_complex) &&
         !is_lazy(tensor, is_complex);
}

bool ArrayReader::read_memory(PyObject* tensor, ArrayView* view, bool* is_complex) const {
  nb::dlpack::dltensor read;
  if (read_tensor_(tensor, &read) != 0) {
    PyErr_Clear();
    return false;
  }
  bool on_gpu = read.device.device_type == kCuda;
  if ((read.device.device_type != kCpu && !on_gpu) || read.strides == nullptr) return false;
  static_assert(sizeof(read.dtype) == sizeof(std::uint32_t));
  view->kind = ArrayView::Kind::kTorch;
  view->data = static_cast<std::byte*>(read.data) + read.byte_offset;
  view->dtype = std::bit_cast<std::uint32_t>(read.dtype);
  view->stride_bytes = (read.dtype.bits * read.dtype.lanes + 7) / 8;
  if (reinterpret_cast<std::uintptr_t>(view->data) % view->stride_bytes != 0) return false;
  view->num_dims = read.ndim;
  view->shape = read.shape;
  view->strides = read.strides;
  view->is_writable = true;
  view->device = on_gpu ? read.device.device_id : -1;
  *is_complex = read.dtype.code == kComplex;
  return true;
}

bool ArrayReader::current_stream(int device, std::uintptr_t* stream) const {
  HostPhase phase("plan: current stream asked for");
  if (numpy_device_ >= 0) {
    *stream = numpy_stream_;
    return true;
  }
  void* handle = nullptr;
  if (read_stream_ == nullptr || read_stream_(kCuda, device, &handle) != 0) {
    PyErr_Clear();
    return false;
  }
  *stream = reinterpret_cast<std::uintptr_t>(handle);
  return true;
}

void ArrayReader::count_write(nb::handle tensors) const { increment_version_(tensors); }

// The table says nothing of these bits.
bool ArrayReader::is_lazy(PyObject* tensor, bool is_complex) const {
  return says(tensor, is_neg_) || (is_complex && says(tensor, is_conj_));
}

bool ArrayReader::says(PyObject* tensor, const nb::object& method) {
  nb::object said = nb::steal(PyObject_CallMethodNoArgs(tensor, method.ptr()));
  if (!said.is_valid()) nb::raise_python_error();
  return said.ptr() != Py_False;
}

bool ArrayReader::wants_gradient(PyObject* tensor) const {
  nb::object requires_grad = nb::steal(PyObject_GetAttr(tensor, requires_grad_.ptr()));
  if (!requires_grad.is_valid()) nb::raise_python_error();
  if (requires_grad.ptr() == Py_False) return false;
  return is_grad_enabled_().ptr() != Py_False;
}

}  // namespace stretto::python
