#include "torch_operators.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "stretto/base/host_phases.h"
#include "torch_inputs.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

nb::object attribute(nb::handle object, const nb::object& name) {
  nb::object found = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!found.is_valid()) nb::raise_python_error();
  return found;
}

// Null where it is not there.
nb::object item(nb::handle dict, nb::handle key) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return nb::borrow(found);
}

// Where a thread's groups are: those of _world.py's _Member, read without its code.
class Worlds {
 public:
  explicit Worlds(nb::object thread) : thread_(std::move(thread)) {}

  // Null for one that is not there.
  nb::object group(std::string_view name) const {
    nb::object member = attribute(thread_, member_);
    return item(attribute(member, groups_), nb::str(name.data(), name.size()));
  }
  // Group.alone() of all ranks, once the thread has one.
  nb::object alone() const {
    nb::object whole = group("");
    if (!whole.is_valid()) return whole;
    nb::object thread = nb::steal(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
    bool is_one = attribute(whole, size_).equal(nb::int_(1));
    if (is_one && attribute(whole, own_thread_).equal(thread)) return whole;
    return item(attribute(whole, alone_), thread);
  }
  // Null where calls of this group have none now.
  nb::object plans(nb::handle group) const {
    bool records = attribute(group, records_).ptr() != Py_False;
    return records ? nb::object() : attribute(group, plans_);
  }

 private:
  nb::object thread_;
  nb::object member_ = nb::str("member"), groups_ = nb::str("groups"), plans_ = nb::str("plans"),
             records_ = nb::str("_records"), size_ = nb::str("size"), alone_ = nb::str("_alone"),
             own_thread_ = nb::str("_thread");
};

struct Operator {
  std::shared_ptr<const TorchAbi> abi;
  std::shared_ptr<const Worlds> worlds;
  Schema schema;
  nb::object body;
  bool is_one_call;  // the body is one Group.call() on its tensors
  std::int64_t number;
};

// PyTorch makes a RuntimeError of what a kernel raises, which the thread's dictionary keeps until
// what typed() made takes it.
nb::object& key_of_raised() {
  static nb::object* key = new nb::object(nb::str("stretto: raised by an operator of PyTorch"));
  return *key;
}

std::string text_of(nb::handle error) {
  nb::str name(error.type().attr("__name__"));
  return fmt::format("{}: {}", name.c_str(), nb::str(error).c_str());
}

[[noreturn]] void raise_to_torch(nb::handle error) {
  PyObject* kept = PyThreadState_GetDict();
  if (kept != nullptr) PyDict_SetItem(kept, key_of_raised().ptr(), error.ptr());
  throw std::runtime_error(text_of(error));
}

// As Group.call() does with what its launches raise.
nb::object settled(const Operator& op, nb::handle group, nb::object error) {
  try {
    nb::object fault = nb::module_::import_("stretto.errors").attr("Fault");
    if (nb::isinstance(error, fault)) {
      group.attr("_say_who")(error);
    } else if (nb::isinstance(error, nb::handle(PyExc_Exception))) {
      group.attr("refuse")(op.schema.name, error);
    }
  } catch (const nb::python_error&) {
    return exception_of(std::current_exception());
  }
  return error;
}

class Results {
 public:
  explicit Results(const TorchAbi& abi) : abi_(abi) {}

  bool make(const TensorLike& like, PlanCache::Call* call) {
    TensorHandle made = nullptr;
    if (abi_.empty_strided(static_cast<std::int64_t>(like.shape.size()), like.shape.data(),
                           like.strides.data(), like.dtype, like.device_type, like.device_index,
                           &made) != 0) {
      return false;
    }
    return push(Tensor(abi_, made), call);
  }
  // False for one that is not read.
  bool push(Tensor tensor, PlanCache::Call* call) {
    tensors_.push_back(std::move(tensor));
    if (call->num_views == PlanCache::kMaxArrays) return false;
    return abi_.read(tensors_.back().get(), &call->views[call->num_views++]);
  }
  std::vector<TensorLike> like() const {
    std::vector<TensorLike> likes;
    for (const Tensor& tensor : tensors_) likes.push_back(abi_.like(tensor.get()));
    return likes;
  }
  void release(StableValue* stack) {
    for (Tensor& tensor : tensors_) *stack++ = tensor.release();
  }

 private:
  const TorchAbi& abi_;
  std::vector<Tensor> tensors_;
};

// False for a call that has no plan.
bool repeat(const Operator& op, const Inputs& inputs, PlanCache& plans, StableValue* stack) {
  PlanCache::Call call;
  call.key.push(op.number);
  if (!inputs.describe(plans, &call)) return false;
  Results results(*op.abi);
  auto make = [&](const TensorLike& like, PlanCache::Call* made) {
    return results.make(like, made);
  };
  if (!plans.repeat(&call, make)) return false;
  results.release(stack);
  return true;
}

nb::object watched_call(const Operator& op, const Inputs& inputs, PlanCache* plans,
                        PlanCache::Watched* watched) {
  struct Watch {
    Watch(PlanCache* plans, PlanCache::Watched* watched) : plans(plans) {
      if (plans != nullptr) plans->watch(watched);
    }
    ~Watch() {
      if (plans != nullptr) plans->watch(nullptr);
    }
    PlanCache* plans;
  } watch(plans, watched);
  nb::tuple arguments = inputs.to_python();
  nb::object result = nb::steal(PyObject_CallObject(op.body.ptr(), arguments.ptr()));
  if (!result.is_valid()) nb::raise_python_error();
  return result;
}

// `plans`: to which the call may be added; may be null.
void call_body(const Operator& op, const Inputs& inputs, PlanCache* plans, StableValue* stack,
               std::uint64_t num_outputs) {
  PlanCache::Watched watched;
  nb::object made = watched_call(op, inputs, plans, &watched);
  nb::tuple several = num_outputs == 1 ? nb::make_tuple(made) : nb::tuple(made);
  if (several.size() != num_outputs) {
    throw InternalError(fmt::format("{}: has made {} results", op.schema.name, several.size()));
  }
  PlanCache::Call call;
  call.key.push(op.number);
  bool fits = plans != nullptr && inputs.describe(*plans, &call);
  Results results(*op.abi);
  for (nb::handle each : several) fits &= results.push(Tensor::of_python(*op.abi, each), &call);
  if (fits) plans->add(call, results.like(), watched);
  results.release(stack);
}

void run(const Operator& op, StableValue* stack, std::uint64_t num_outputs) {
  HostPhase phase("operator of PyTorch: other");
  Inputs inputs(*op.abi, op.schema, stack);
  nb::gil_scoped_acquire locked;
  nb::object group, owner;
  PlanCache* plans = nullptr;
  try {
    if (op.is_one_call) {
      bool has_group = op.schema.group != Schema::kMaxArguments;
      group = has_group ? op.worlds->group(inputs.group()) : op.worlds->alone();
      if (group.is_valid()) owner = op.worlds->plans(group);
      if (owner.is_valid()) plans = nb::cast<PlanCache*>(owner);
    }
    if (plans != nullptr && repeat(op, inputs, *plans, stack)) return;
  } catch (const std::exception&) {
    nb::object error = exception_of(std::current_exception());
    raise_to_torch(group.is_valid() ? settled(op, group, error) : error);
  }
  try {
    call_body(op, inputs, plans, stack, num_outputs);
  } catch (const std::exception&) {
    raise_to_torch(exception_of(std::current_exception()));
  }
}

// A kernel is a function and nothing else, so each has its place in a table, which stays: PyTorch
// keeps kernels past the end of the interpreter.
constexpr std::size_t kMaxOperators = 64;
using Table = std::array<std::unique_ptr<const Operator>, kMaxOperators>;

Table& table() {
  static auto* operators = new Table;
  return *operators;
}

template <std::size_t I>
void kernel(StableValue* stack, std::uint64_t, std::uint64_t num_outputs) {
  run(*table()[I], stack, num_outputs);
}

template <std::size_t... I>
constexpr std::array<StableKernel, kMaxOperators> kernels(std::index_sequence<I...>) {
  return {&kernel<I>...};
}

class OperatorLibrary {
 public:
  OperatorLibrary(const std::string& name, nb::object thread)
      : abi_(TorchAbi::find()), worlds_(std::make_shared<Worlds>(std::move(thread))) {
    if (abi_ == nullptr) throw UserError("this PyTorch has no stable ABI, or not all of it");
    const char* file = "stretto/_core";
    check_stable(abi_->new_library(name.c_str(), file, 0, &library_), "a library");
    const char* key = "CompositeExplicitAutograd";
    check_stable(abi_->new_kernels(name.c_str(), key, file, 0, &kernels_), "kernels");
  }
  static bool is_there() { return TorchAbi::find() != nullptr; }

  // Whether it is tagged as pt2_compliant.
  bool define(const std::string& schema, nb::object body, bool is_one_call) {
    static constexpr auto kKernels = kernels(std::make_index_sequence<kMaxOperators>());
    std::size_t number = 0;
    while (number < kMaxOperators && table()[number] != nullptr) ++number;
    if (number == kMaxOperators) throw InternalError("too many operators of PyTorch");
    auto made = std::make_unique<const Operator>(Operator{
        .abi = abi_,
        .worlds = worlds_,
        .schema = Schema::parse(schema),
        .body = std::move(body),
        .is_one_call = is_one_call,
        .number = static_cast<std::int64_t>(number),
    });
    const Operator& op = *(table()[number] = std::move(made));
    bool has_tags = abi_->define_with_tags != nullptr;
    if (has_tags) {
      std::int32_t tag = abi_->pt2_compliant_tag();
      check_stable(abi_->define_with_tags(library_, schema.c_str(), &tag, 1), schema.c_str());
    } else {
      check_stable(abi_->define(library_, schema.c_str()), schema.c_str());
    }
    const char* name = op.schema.name.c_str();
    check_stable(abi_->add_kernel(kernels_, name, kKernels[number], kStableVersion), name);
    return has_tags;
  }

 private:
  std::shared_ptr<const TorchAbi> abi_;
  std::shared_ptr<const Worlds> worlds_;
  void *library_ = nullptr, *kernels_ = nullptr;  // which stay, as the kernels do
};

// Python's error becomes what a kernel of this thread has raised, if it is PyTorch's for that.
void restore_raised() noexcept {
  try {
    nb::python_error error;
    nb::handle kept = PyThreadState_GetDict();
    nb::object raised = kept.is_valid() ? item(kept, key_of_raised()) : nb::object();
    if (raised.is_valid()) PyDict_DelItem(kept.ptr(), key_of_raised().ptr());
    bool is_it = raised.is_valid() && error.matches(PyExc_RuntimeError) &&
                 text_of(raised) == nb::str(error.value()).c_str();
    if (is_it) {
      PyErr_SetObject(raised.type().ptr(), raised.ptr());
    } else {
      error.restore();
    }
  } catch (nb::python_error& error) {
    error.restore();
  }
}

PyObject* call_typed(PyObject* call, PyObject* const* inputs, Py_ssize_t num, PyObject* names) {
  PyObject* result = PyObject_Vectorcall(call, inputs, static_cast<std::size_t>(num), names);
  if (result == nullptr) restore_raised();
  return result;
}

// `call`, an operator, whose errors have the types that they had in the kernel.
nb::object typed(nb::handle call) {
  static PyMethodDef method{"typed",
                            reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call_typed)),
                            METH_FASTCALL | METH_KEYWORDS, nullptr};
  return nb::steal(PyCFunction_NewEx(&method, call.ptr(), nullptr));
}

}  // namespace

void bind_torch_operators(nb::module_& m) {
  nb::class_<OperatorLibrary>(m, "OperatorLibrary")
      .def(nb::init<const std::string&, nb::object>(), nb::arg("name"), nb::arg("thread"))
      .def_static("is_there", &OperatorLibrary::is_there)
      .def("define", &OperatorLibrary::define, nb::arg("schema"), nb::arg("body"), nb::kw_only(),
           nb::arg("is_one_call"));
  m.def("typed", &typed);
}

}  // namespace stretto::python
