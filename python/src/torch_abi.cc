#include "torch_abi.h"

#include <dlfcn.h>

#include <type_traits>

namespace stretto::python {

std::unique_ptr<const TorchAbi> TorchAbi::find() {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto abi = std::make_unique<TorchAbi>();
  bool all = true;
  auto look = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    return *function != nullptr;
  };
  auto need = [&](const char* name, auto* function) { all &= look(name, function); };
  need("aoti_torch_library_init_fragment", &abi->new_library);
  need("aoti_torch_library_init_impl", &abi->new_kernels);
  need("aoti_torch_library_def", &abi->define);
  need("torch_library_impl", &abi->add_kernel);
  need("aoti_torch_new_tensor_handle", &abi->new_handle);
  need("aoti_torch_delete_tensor_object", &abi->delete_tensor);
  need("aoti_torch_get_data_ptr", &abi->data);
  need("aoti_torch_get_dim", &abi->num_dims);
  need("aoti_torch_get_sizes", &abi->shape);
  need("aoti_torch_get_strides", &abi->strides);
  need("aoti_torch_get_dtype", &abi->dtype);
  need("aoti_torch_get_device_type", &abi->device_type);
  need("aoti_torch_get_device_index", &abi->device_index);
  need("aoti_torch_get_layout", &abi->layout);
  need("aoti_torch_empty_strided", &abi->empty_strided);
  need("aoti_torch_dtype_element_size", &abi->element_bytes);
  need("aoti_torch_device_type_cpu", &abi->cpu);
  need("aoti_torch_device_type_cuda", &abi->cuda);
  need("aoti_torch_layout_strided", &abi->strided);
  need("torch_string_length", &abi->string_length);
  need("torch_string_c_str", &abi->string_data);
  need("torch_delete_string", &abi->delete_string);
  need("torch_list_size", &abi->list_size);
  need("torch_list_get_item", &abi->list_item);
  need("torch_delete_list", &abi->delete_list);
  if (!look("torch_tag_pt2_compliant_tag", &abi->pt2_compliant_tag) ||
      !look("torch_library_def_with_tags", &abi->define_with_tags)) {
    abi->define_with_tags = nullptr;
  }
  look("torch_delete_stable_ivalue", &abi->delete_value);
  if (!look("torch_tensor_to_pyobject", &abi->to_python) ||
      !look("torch_tensor_from_pyobject", &abi->from_python)) {
    abi->to_python = nullptr;
  }
  abi->wrap = nullptr;
  if (void* python = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD); python != nullptr) {
    // THPVariable_Wrap(const at::TensorBase&), and (at::TensorBase), which takes an address, too.
    for (const char* name :
         {"_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE"}) {
      if (abi->wrap == nullptr) abi->wrap = reinterpret_cast<void* (*)(void*)>(dlsym(python, name));
    }
  }
  if (!all) return nullptr;  // the process keeps PyTorch loaded, here too
  return abi;
}

bool TorchAbi::read(TensorHandle tensor, ArrayView* view) const {
  // Functions that fail also write to stderr, so they are asked for nothing that they do not have.
  std::int32_t layout_of = 0, type = 0, index = 0, dtype_of = 0;
  std::int64_t dims = 0;
  std::int64_t *shape_of = nullptr, *strides_of = nullptr;
  void* address = nullptr;
  if (layout(tensor, &layout_of) != 0 || layout_of != strided()) return false;
  if (device_type(tensor, &type) != 0 || (type != cpu() && type != cuda())) return false;
  if (device_index(tensor, &index) != 0 || dtype(tensor, &dtype_of) != 0) return false;
  if (num_dims(tensor, &dims) != 0 || shape(tensor, &shape_of) != 0) return false;
  if (strides(tensor, &strides_of) != 0 || data(tensor, &address) != 0) return false;
  view->kind = ArrayView::Kind::kTorch;
  view->data = static_cast<std::byte*>(address);
  view->dtype = static_cast<std::uint64_t>(dtype_of);
  view->num_dims = static_cast<int>(dims);
  view->shape = shape_of;
  view->strides = strides_of;
  view->stride_bytes = static_cast<std::int64_t>(element_bytes(dtype_of));
  view->is_writable = true;
  view->device = type == cuda() ? index : -1;
  if (view->stride_bytes == 0 || (address == nullptr && view->has_elements())) return false;
  return reinterpret_cast<std::uintptr_t>(address) % view->stride_bytes == 0;
}

TensorLike TorchAbi::like(TensorHandle tensor) const {
  TensorLike made;
  ArrayView view;
  if (!read(tensor, &view)) return made;
  made.shape.assign(view.shape, view.shape + view.num_dims);
  made.strides.assign(view.strides, view.strides + view.num_dims);
  made.dtype = static_cast<std::int32_t>(view.dtype);
  device_type(tensor, &made.device_type);
  device_index(tensor, &made.device_index);
  return made;
}

}  // namespace stretto::python
