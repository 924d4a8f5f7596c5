#include "errors.h"

#include <nanobind/stl/string.h>

#include "plan_cache.h"
#include "session.h"
#include "stretto/proof/verdict.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// `attribute`: one that the exception gets beside its text.
void raise(const char* type, const Error& error, const char* attribute = nullptr,
           nb::object value = nb::none()) {
  nb::object made = nb::module_::import_("stretto.errors").attr(type)(nb::str(error.what()));
  if (attribute != nullptr) made.attr(attribute) = value;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

nb::dict to_dict(const FaultRecord& r) {
  nb::dict d;
  d["program"] = r.program;
  d["role"] = r.role;
  d["rank"] = r.rank;
  d["tile"] = r.tile;
  d["signal"] = r.signal;
  d["channel"] = r.channel;
  d["expected"] = r.expected;
  d["seen"] = r.seen;
  d["waited_for"] = r.waited_for;
  d["reason"] = r.reason;
  return d;
}

}  // namespace

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const Fault& e) {
    raise("Fault", e, "record", to_dict(e.record()));
  } catch (const Disagreement& e) {
    raise("UserError", e, "is_settled", nb::bool_(true));
  } catch (const AnotherThread& e) {
    raise("UserError", e, "is_settled", nb::bool_(true));
  } catch (const UserError& e) {
    raise("UserError", e);
  } catch (const Rejected& e) {
    raise("Rejected", e);
  } catch (const NotComplete& e) {
    raise("NotComplete", e);
  } catch (const DeviceError& e) {
    raise("DeviceError", e);
  } catch (const InternalError& e) {
    raise("InternalError", e);
  }
}

nb::object exception_of(const std::exception_ptr& error) {
  try {
    try {
      translate(error, nullptr);
      nb::raise_python_error();
    } catch (const nb::python_error&) {
      throw;
    } catch (const std::exception& e) {
      return nb::borrow(PyExc_RuntimeError)(e.what());
    }
  } catch (const nb::python_error& e) {
    nb::object raised = nb::borrow(e.value());
    if (e.traceback().is_valid()) PyException_SetTraceback(raised.ptr(), e.traceback().ptr());
    return raised;
  }
}

}  // namespace stretto::python
