#include "torch_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace nb = nanobind;

namespace stretto::python {
namespace {

Schema::Type type_of(std::string_view name) {
  constexpr std::pair<std::string_view, Schema::Type> kTypes[] = {
      {"Tensor", Schema::Type::kTensor}, {"int", Schema::Type::kInt},
      {"SymInt", Schema::Type::kInt},    {"bool", Schema::Type::kBool},
      {"float", Schema::Type::kFloat},   {"str", Schema::Type::kText},
      {"int[]", Schema::Type::kInts},    {"SymInt[]", Schema::Type::kInts}};
  for (auto [known, type] : kTypes) {
    if (name == known) return type;
  }
  throw InternalError(fmt::format("operators of PyTorch: no arguments of type {}", name));
}

// In PyTorch's C functions for Python, an address is a capsule without a name. They are there
// before the ABI has its own.
nb::object address_functions() { return nb::module_::import_("torch._C").attr("_aoti"); }

}  // namespace

void check_stable(int status, const char* what) {
  if (status != 0) throw InternalError(fmt::format("PyTorch's stable ABI refuses {}", what));
}

nb::object object_of(const TorchAbi& abi, TensorHandle tensor) {
  if (abi.to_python != nullptr) {
    void* object = nullptr;
    check_stable(abi.to_python(tensor, nullptr, &object), "a tensor for Python");
    return nb::steal(static_cast<PyObject*>(object));
  }
  if (abi.wrap != nullptr) {
    void* object = nullptr;
    try {
      object = abi.wrap(tensor);
    } catch (...) {  // of PyTorch's
    }
    if (object != nullptr) return nb::steal(static_cast<PyObject*>(object));
    PyErr_Clear();
  }
  TensorHandle given = nullptr;
  check_stable(abi.new_handle(tensor, &given), "a handle");
  nb::list address;  // that of several frees what held the tensor, that of one does not (2.11)
  address.append(nb::steal(PyCapsule_New(given, nullptr, nullptr)));
  return address_functions().attr("alloc_tensors_by_stealing_from_void_ptrs")(address)[0];
}

Schema Schema::parse(std::string_view text) {
  Schema schema;
  std::size_t begin = text.find('('), end = text.find(')');
  schema.name = text.substr(0, begin);
  std::string_view rest = text.substr(begin + 1, end - begin - 1);
  while (!rest.empty()) {
    std::string_view argument = rest.substr(0, rest.find(", "));
    rest.remove_prefix(std::min(rest.size(), argument.size() + 2));
    std::size_t space = argument.rfind(' ');
    std::string_view type = argument.substr(0, space);
    if (argument.substr(space + 1) == "group") schema.group = schema.arguments.size();
    bool may_be_missing = type.ends_with('?');
    if (may_be_missing) type.remove_suffix(1);
    schema.arguments.push_back({type_of(type), may_be_missing});
  }
  if (schema.arguments.size() > kMaxArguments) {
    throw InternalError(fmt::format("{}: has more than {} arguments", schema.name, kMaxArguments));
  }
  return schema;
}

Inputs::Inputs(const TorchAbi& abi, const Schema& schema, StableValue* stack)
    : abi_(abi), schema_(schema) {
  for (std::size_t i = 0; i < schema.arguments.size(); ++i) {
    values_[i] = stack[i];
    is_there_[i] = true;
    if (!schema.arguments[i].may_be_missing) continue;
    auto* inner = reinterpret_cast<StableValue*>(stack[i]);
    is_there_[i] = inner != nullptr;
    if (inner == nullptr) continue;
    values_[i] = *inner;
    if (abi.delete_value != nullptr) {
      abi.delete_value(inner);
    } else {
      delete inner;  // as the ABI had it before
    }
  }
}

Inputs::~Inputs() {
  for (std::size_t i = 0; i < schema_.arguments.size(); ++i) {
    if (!is_there_[i]) continue;
    Schema::Type type = schema_.arguments[i].type;
    if (type == Schema::Type::kTensor) abi_.delete_tensor(handle(i));
    if (type == Schema::Type::kText) abi_.delete_string(handle(i));
    if (type == Schema::Type::kInts) abi_.delete_list(handle(i));
  }
}

std::string_view Inputs::text(std::size_t i) const {
  std::size_t length = 0;
  const char* data = nullptr;
  check_stable(abi_.string_length(handle(i), &length), "a text's length");
  check_stable(abi_.string_data(handle(i), &data), "a text");
  return {data, length};
}

std::string_view Inputs::group() const {
  return schema_.group == Schema::kMaxArguments ? "" : text(schema_.group);
}

bool Inputs::describe(const PlanCache& plans, PlanCache::Call* call) const {
  for (std::size_t i = 0; i < schema_.arguments.size(); ++i) {
    if (i == schema_.group) continue;
    if (schema_.arguments[i].may_be_missing && !call->key.push(is_there_[i])) return false;
    if (is_there_[i] && !describe_one(i, plans, call)) return false;
  }
  return call->num_arrays > 0;
}

bool Inputs::describe_one(std::size_t i, const PlanCache& plans, PlanCache::Call* call) const {
  switch (schema_.arguments[i].type) {
    case Schema::Type::kTensor: {
      ArrayView view;
      return abi_.read(handle(i), &view) && plans.push(view, call);
    }
    case Schema::Type::kText: {
      std::string_view rest = text(i);
      bool fits = call->key.push(static_cast<std::int64_t>(rest.size()));
      while (fits && !rest.empty()) {
        std::int64_t word = 0;
        std::size_t bytes = std::min(rest.size(), sizeof(word));
        std::memcpy(&word, rest.data(), bytes);
        rest.remove_prefix(bytes);
        fits = call->key.push(word);
      }
      return fits;
    }
    case Schema::Type::kInts:
      return describe_list(handle(i), &call->key);
    default:
      return call->key.push(std::bit_cast<std::int64_t>(values_[i]));
  }
}

bool Inputs::describe_list(void* list, CallKey* key) const {
  std::size_t size = 0;
  check_stable(abi_.list_size(list, &size), "a list's size");
  bool fits = key->push(static_cast<std::int64_t>(size));
  for (std::size_t k = 0; k < size && fits; ++k) {
    StableValue item = 0;
    check_stable(abi_.list_item(list, k, &item), "a list's item");
    fits = key->push(std::bit_cast<std::int64_t>(item));
  }
  return fits;
}

nb::tuple Inputs::to_python() const {
  nb::list objects;
  for (std::size_t i = 0; i < schema_.arguments.size(); ++i) {
    objects.append(is_there_[i] ? to_python(i) : nb::none());
  }
  return nb::tuple(objects);
}

nb::object Inputs::to_python(std::size_t i) const {
  switch (schema_.arguments[i].type) {
    case Schema::Type::kTensor:
      return object_of(abi_, handle(i));
    case Schema::Type::kInt:
      return nb::int_(std::bit_cast<std::int64_t>(values_[i]));
    case Schema::Type::kBool:
      return nb::bool_((values_[i] & 0xff) != 0);
    case Schema::Type::kFloat:
      return nb::float_(std::bit_cast<double>(values_[i]));
    case Schema::Type::kText: {
      std::string_view said = text(i);
      return nb::str(said.data(), said.size());
    }
    case Schema::Type::kInts: {
      nb::list items;
      std::size_t size = 0;
      check_stable(abi_.list_size(handle(i), &size), "a list's size");
      for (std::size_t k = 0; k < size; ++k) {
        StableValue item = 0;
        check_stable(abi_.list_item(handle(i), k, &item), "a list's item");
        items.append(nb::int_(std::bit_cast<std::int64_t>(item)));
      }
      return items;
    }
  }
  return nb::none();
}

Tensor Tensor::of_python(const TorchAbi& abi, nb::handle object) {
  TensorHandle made = nullptr;
  if (abi.to_python != nullptr) {
    check_stable(abi.from_python(object.ptr(), &made), "a result");
  } else {
    nb::object address = address_functions().attr("unsafe_alloc_void_ptr_from_tensor")(object);
    made = PyCapsule_GetPointer(address.ptr(), nullptr);
    if (made == nullptr) nb::raise_python_error();
  }
  return Tensor(abi, made);
}

}  // namespace stretto::python
