// The extension module stretto._core: sessions, symmetric memory, programs and their launches. What
// users call is in the Python files beside it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "contest.h"
#include "errors.h"
#include "interruptible.h"
#include "plan_cache.h"
#include "programs.h"
#include "session_executable.h"
#include "stretto/base/host_phases.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/driver_phases.h"
#include "stretto/runtime/recorder.h"
#include "torch_operators.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// Addresses and extents of a launch without an allocation per call.
constexpr std::size_t kMaxArgs = 32;

void launch(SessionExecutable& executable, nb::args args, const std::vector<std::int64_t>& extents,
            const std::string& said, std::uintptr_t stream) {
  std::byte* addresses[kMaxArgs];
  if (args.size() > kMaxArgs) throw UserError("more tensors than a program may have");
  for (std::size_t i = 0; i < args.size(); ++i) {
    addresses[i] = reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(args[i]));
  }
  Interruptible waiting;
  executable.launch({addresses, args.size()}, extents, said, stream);
}

// `beside`: a session that this process has already, may be null.
std::shared_ptr<Session> meet(BootstrapAddress bootstrap, std::int64_t timeout_ms,
                              const Session* beside) {
  ProcessWorldOptions options{.bootstrap = std::move(bootstrap)};
  if (timeout_ms > 0) options.timeout = std::chrono::milliseconds(timeout_ms);
  return std::make_shared<Session>(std::make_shared<World>(options),
                                   beside == nullptr ? nullptr : beside->ledger());
}

std::shared_ptr<Session> processes_session(int rank, int size, const std::string& address, int port,
                                           int listener, const std::string& job,
                                           std::int64_t timeout_ms, const Session* beside) {
  return meet({rank, size, address, port, listener, job}, timeout_ms, beside);
}

// Null where the environment names no world of processes.
std::shared_ptr<Session> environment_session(std::int64_t timeout_ms) {
  std::optional<BootstrapAddress> bootstrap = bootstrap_address_of_environment();
  return bootstrap ? meet(*bootstrap, timeout_ms, nullptr) : nullptr;
}

std::shared_ptr<Session> threads_session(int size, std::int64_t timeout_ms) {
  WorldOptions options{.size = size};
  if (timeout_ms > 0) options.timeout = std::chrono::milliseconds(timeout_ms);
  return std::make_shared<Session>(std::make_shared<World>(options), nullptr);
}

void bind_session(nb::module_& m) {
  // Of the GPU of that number.
  m.def("gpu_sms", [](int device) { return cuda::Device(device).properties().num_sms; });
  m.def("gpu_name", [](int device) { return cuda::Device(device).properties().name; });
  // Where the host's time goes in calls that this thread makes until finish().
  nb::class_<HostPhases>(m, "HostPhases").def(nb::init<>()).def("finish", [](HostPhases& phases) {
    std::map<std::string, std::pair<std::int64_t, double>> out;  // times, nanoseconds
    for (const auto& [name, spent] : phases.finish()) out[name] = {spent.count, spent.ns};
    return out;
  });
  m.def("phase_driver_calls", &cuda::phase_driver_calls);
  m.def("want_plan_graphs", &PlanGraphs::want);
  nb::class_<Session>(m, "Session")
      .def_static("threads", &threads_session, nb::arg("size"), nb::arg("timeout_ms") = 0,
                  nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("size", &Session::size)
      .def_static("processes", &processes_session, nb::arg("rank"), nb::arg("size"),
                  nb::arg("address"), nb::arg("port"), nb::arg("listener"), nb::arg("job"),
                  nb::arg("timeout_ms"), nb::arg("beside").none(), nb::call_guard<Interruptible>())
      .def_static("of_environment", &environment_session, nb::arg("timeout_ms"),
                  nb::call_guard<Interruptible>())
      .def_prop_ro("local_rank", &Session::local_rank)
      .def_prop_ro("has_threads", [](Session& s) { return s.world().local_ranks().size() > 1; })
      .def("split", &Session::split, nb::arg("rank"), nb::arg("group"), nb::arg("request"),
           nb::call_guard<Interruptible>())
      .def("finalize", &Session::finalize, nb::arg("rank"), nb::arg("at_once"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("recover", &Session::recover, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "barrier", [](Session& s, int rank) { s.rank(rank).barrier(); },
          nb::call_guard<Interruptible>())
      .def(
          "fail", [](Session& s, int rank, const std::string& reason) { s.fail(rank, reason); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "open_gpu",
          [](Session& s, int device, bool share_devices) {
            s.open_gpu({.device = device, .share_devices = share_devices});
          },
          nb::arg("device"), nb::arg("share_devices") = false,
          nb::call_guard<nb::gil_scoped_release>())
      .def("agree", &Session::agree, nb::call_guard<Interruptible>())
      .def("same", &Session::same, nb::call_guard<Interruptible>())
      .def("refuse", &Session::refuse, nb::call_guard<Interruptible>())
      .def("check", &Session::check)
      .def("is_symmetric",
           [](Session& s, int rank, std::uintptr_t address) {
             return s.find_memory(rank, reinterpret_cast<std::byte*>(address)) != nullptr;
           })
      .def("record", &Session::record, nb::call_guard<nb::gil_scoped_release>())
      .def("forget_recording", &Session::forget_recording)
      .def_static("write_trace", &Session::write_trace, nb::arg("path"), nb::arg("sessions"));
}

std::shared_ptr<SymmetricMemory> allocate(std::shared_ptr<Session> session, int rank,
                                          const std::string& name, bool on_gpu, std::size_t bytes) {
  Interruptible waiting;
  return std::make_shared<SymmetricMemory>(std::move(session), rank, name,
                                           on_gpu ? MemoryKind::kGpu : MemoryKind::kHost, bytes);
}

// A step of a call, see PlanCache::Made.
using Step = std::tuple<std::shared_ptr<SessionExecutable>, std::vector<std::uintptr_t>,
                        std::vector<std::int64_t>, std::string>;
// One whose addresses take turns, see TimedLaunch.
using StepInTurn =
    std::tuple<std::shared_ptr<SessionExecutable>, std::vector<std::vector<std::uintptr_t>>,
               std::vector<std::int64_t>, std::string>;
using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using DlpackBytes = nb::ndarray<std::uint8_t, nb::ndim<1>>;

std::vector<TimedLaunch> timed(const std::vector<StepInTurn>& steps) {
  std::vector<TimedLaunch> launches;
  for (const auto& [executable, turns, extents, said] : steps) {
    TimedLaunch& launch = launches.emplace_back();
    launch.executable = executable;
    launch.extents = extents;
    launch.said = said;
    for (const auto& addresses : turns) {
      std::vector<std::byte*>& args = launch.turns.emplace_back();
      for (std::uintptr_t address : addresses)
        args.push_back(reinterpret_cast<std::byte*>(address));
    }
  }
  return launches;
}

void bind_launches(nb::module_& m) {
  m.def("contest", [](Session& session, const std::vector<StepInTurn>& made,
                      const std::vector<StepInTurn>& fastest, double ms_of_samples) {
    std::vector<TimedLaunch> ours = timed(made), theirs = timed(fastest);
    Interruptible waiting;
    Contest found = contest(session, ours, theirs, ms_of_samples);
    return std::pair(found.ms, found.won);
  });
  nb::class_<SymmetricMemory>(m, "SymmetricMemory")
      .def_static("allocate", &allocate)
      .def("bytes",
           [](nb::handle self) {
             auto& memory = nb::cast<SymmetricMemory&>(self);
             std::size_t shape[1] = {memory.bytes()};
             return Bytes(memory.data(), 1, shape, self);
           })
      .def_prop_ro("address",
                   [](const SymmetricMemory& memory) {
                     return reinterpret_cast<std::uintptr_t>(memory.data());
                   })
      .def_prop_ro("device", &SymmetricMemory::device)
      .def("dlpack", [](nb::handle self) {  // a capsule, also of memory on a GPU
        auto& memory = nb::cast<SymmetricMemory&>(self);
        std::size_t shape[1] = {memory.bytes()};
        bool on_gpu = memory.is_on_gpu();
        return DlpackBytes(memory.data(), 1, shape, self, nullptr, nb::dtype<std::uint8_t>(),
                           on_gpu ? nb::device::cuda::value : nb::device::cpu::value,
                           std::max(memory.device(), 0));
      });
  nb::class_<SessionExecutable>(m, "Executable")
      .def_static(
          "make",
          [](std::shared_ptr<Session> session, int rank, Compiled& compiled,
             const std::vector<bool>& staged, bool on_gpu, bool records, const std::string& said) {
            return SessionExecutable::make(std::move(session), rank, compiled, staged,
                                           on_gpu ? MemoryKind::kGpu : MemoryKind::kHost, records,
                                           said);
          },
          nb::arg("session"), nb::arg("rank"), nb::arg("compiled"), nb::arg("staged"),
          nb::arg("on_gpu"), nb::kw_only(), nb::arg("records"), nb::arg("said"),
          nb::call_guard<Interruptible>())
      .def_prop_ro("content", &SessionExecutable::content)
      .def_prop_ro("bytes", &SessionExecutable::bytes)
      .def_prop_ro("last_use", &SessionExecutable::last_use)
      .def("forget_use", &SessionExecutable::forget_use)
      .def_prop_ro("is_captured", &SessionExecutable::is_captured)
      .def("launch", &launch, nb::arg("addresses"), nb::kw_only(), nb::arg("extents"),
           nb::arg("said") = "", nb::arg("stream") = 0);
  nb::class_<PlanCache>(m, "PlanCache")
      .def(nb::init<std::shared_ptr<Session>, int, nb::object>())
      .def("know_torch",
           [](PlanCache& plans, nb::object tensor, nb::object parameter, nb::object is_grad_enabled,
              nb::object increment_version) {
             plans.reader().know_torch(std::move(tensor), std::move(parameter),
                                       std::move(is_grad_enabled), std::move(increment_version));
           })
      .def(
          "replay",
          [](PlanCache& plans, nb::handle op, std::int64_t option, nb::handle out,
             nb::args arrays) {
            nb::object result = plans.replay(op, option, out, std::move(arrays));
            return result.is_valid() ? result : nb::borrow(Py_NotImplemented);  // None is a result
          },
          nb::arg("op"), nb::arg("option"), nb::arg("out").none(), nb::arg("arrays"))
      .def(
          "add",
          [](PlanCache& plans, nb::object op, std::int64_t option, nb::handle out, nb::args arrays,
             nb::handle result, std::vector<nb::object> makers, const std::vector<Step>& steps,
             const std::vector<std::tuple<std::uintptr_t, std::size_t, nb::object>>& fixed,
             const std::tuple<std::int64_t, std::int64_t, std::string>& any_option) {
            std::vector<PlanCache::Made> made;
            std::vector<PlanCache::Fixed> there;
            for (const auto& [address, bytes, owner] : fixed) {
              there.push_back({address, bytes, owner});
            }
            for (const auto& [executable, addresses, extents, said] : steps) {
              made.push_back({executable, addresses, extents, said});
            }
            plans.add(std::move(op), option, out, std::move(arrays), result, std::move(makers),
                      made, there,
                      {std::get<0>(any_option), std::get<1>(any_option), std::get<2>(any_option)});
          },
          nb::arg("op"), nb::arg("option"), nb::arg("out").none(), nb::arg("arrays"), nb::kw_only(),
          nb::arg("result").none(), nb::arg("makers"), nb::arg("steps"), nb::arg("fixed"),
          nb::arg("any_option"))
      .def("are_apart",
           [](PlanCache& plans, const nb::list& written, const nb::list& read) {
             return plans.reader().are_apart(written, read);
           })
      .def("take_numpy_for",
           [](PlanCache& plans, int device, std::uintptr_t stream) {
             plans.reader().take_numpy_for(device, stream);
           })
      .def("clear", &PlanCache::clear)
      .def("forget", &PlanCache::forget)
      .def("forget_memory", &PlanCache::forget_memory)
      .def("enter", &PlanCache::enter)
      .def("leave", &PlanCache::leave);
}

}  // namespace
}  // namespace stretto::python

NB_MODULE(_core, m) {
  // PyTorch and forked children keep objects past the end of the interpreter.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(stretto::python::translate);
  stretto::python::bind_programs(m);
  stretto::python::bind_session(m);
  stretto::python::bind_launches(m);
  stretto::python::bind_torch_operators(m);
}
