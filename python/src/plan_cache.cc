#include "plan_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "gpu_side.h"
#include "interruptible.h"
#include "stretto/base/host_phases.h"
#include "stretto/gpu/gpu_ledger.h"
#include "torch_results.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

class Entered {
 public:
  Entered(PlanCache& cache, int rank) : cache_(cache) {
    if (cache.enter()) return;
    throw AnotherThread(fmt::format("rank {}: stretto is being called from another thread", rank));
  }
  ~Entered() { cache_.leave(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  PlanCache& cache_;
};

// In a key, that the caller leaves the result at this place to the plan. No array's word is below
// 0.
std::int64_t made_at(std::size_t place) { return -1 - static_cast<std::int64_t>(place); }

// In a key, in place of the option: the second word.
constexpr std::size_t kOptionWord = 1;
constexpr std::int64_t kAnyOption = std::numeric_limits<std::int64_t>::min();

// A call's results, by place.
nb::tuple several(nb::handle results) {
  if (PyTuple_CheckExact(results.ptr())) return nb::borrow<nb::tuple>(results);
  return results.is_none() ? nb::tuple() : nb::make_tuple(results);
}

// Those that the caller gave.
nb::object given_of(nb::handle out) {
  nb::tuple results = several(out);
  auto is_none = [](nb::handle each) { return each.is_none(); };
  if (std::none_of(results.begin(), results.end(), is_none)) return results;
  nb::list given;
  for (nb::handle each : results) {
    if (!each.is_none()) given.append(each);
  }
  return given;
}

}  // namespace

std::size_t PlanCache::Hash::operator()(std::span<const std::int64_t> words) const {
  std::uint64_t h = words.size();
  for (std::int64_t word : words) {
    h = (h ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
  }
  return h;
}

bool PlanCache::describe_array(const ArrayView& view, std::size_t place, Call* call) const {
  bool fits = true;
  auto push = [&](std::uint64_t word) { fits &= call->key.push(static_cast<std::int64_t>(word)); };
  std::size_t first = 0;
  while (first < place && call->views[first].data != view.data) ++first;
  bool is_symmetric = session_->find_memory(rank_, view.data) != nullptr;
  // Kernels take whole 16 bytes; what is not so aligned is copied, which is more than one launch.
  if (view.device >= 0 && reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) return false;
  push(static_cast<std::uint64_t>(view.kind) | (is_symmetric ? 2u : 0u) | first << 8 |
       static_cast<std::uint64_t>(view.num_dims) << 16 |
       static_cast<std::uint64_t>(view.device + 1) << 32);
  push(view.dtype);
  for (int d = 0; d < view.num_dims; ++d) {
    if (view.shape[d] == 0) return false;
    push(static_cast<std::uint64_t>(view.shape[d]));
    push(static_cast<std::uint64_t>(view.strides[d]));
  }
  return fits;
}

bool PlanCache::read_result(nb::handle result, bool made, Call* call) const {
  if (call->num_views == kMaxArrays) return false;
  ArrayView* view = &call->views[call->num_views++];
  return made ? reader_.read_made(result, view) : reader_.read(result, view);
}

bool PlanCache::describe(nb::handle op, std::int64_t option, nb::handle out, const nb::args& arrays,
                         Call* call) const {
  HostPhase phase("plan: arguments read");
  std::size_t num_arrays = arrays.size();
  if (num_arrays >= kMaxArrays) return false;
  call->num_arrays = num_arrays;
  call->key.push(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(op.ptr())));
  call->key.push(option);
  call->option = option;
  if (option == kAnyOption) return false;
  for (std::size_t i = 0; i < num_arrays; ++i) {
    ArrayView& view = call->views[i];
    if (!reader_.read(arrays[i], &view) || !describe_array(view, i, call)) return false;
  }
  call->num_views = num_arrays;
  if (out.is_none()) return true;
  bool fits = true;
  nb::tuple results = several(out);
  for (std::size_t i = 0; i < results.size(); ++i) {
    fits &=
        results[i].is_none() ? call->key.push(made_at(i)) : read_result(results[i], false, call);
  }
  if (!fits) return false;
  for (std::size_t i = num_arrays; i < call->num_views; ++i) {
    const ArrayView& written = call->views[i];
    if (!written.is_writable || !describe_array(written, i, call)) return false;
    // The key says which are the same, not how else they lie in each other.
    for (std::size_t j = 0; j < i; ++j) {
      bool is_same = j < num_arrays && call->views[j].data == written.data;
      if (!is_same && call->views[j].may_overlap(written)) return false;
    }
  }
  return true;
}

nb::object PlanCache::replay(nb::handle op, std::int64_t option, nb::handle out, nb::args arrays) {
  HostPhase phase("plan: found, lock given back");
  Call call;
  if (!describe(op, option, out, arrays, &call)) return nb::object();
  std::shared_ptr<const Plan> plan = plan_of(&call);
  if (plan == nullptr) return nb::object();
  Entered entered(*this, rank_);
  nb::object result = make_results(*plan, out, &call);
  if (!result.is_valid()) return nb::object();
  std::uintptr_t stream = 0;
  int device = call.views[0].device;
  if (device >= 0 && !reader_.current_stream(device, &stream)) return nb::object();
  bool is_tensor = call.views[0].kind == ArrayView::Kind::kTorch;
  if (!out.is_none() && is_tensor) reader_.count_write(given_of(out));
  Watched* watched = watched_by_this_thread();
  if (watched != nullptr) {
    watched->owners.insert(watched->owners.end(), plan->kept.begin(), plan->kept.end());
  }
  Interruptible waiting;
  run(plan, call, stream, watched);
  return result;
}

nb::object PlanCache::make_results(const Plan& plan, nb::handle out, Call* call) const {
  if (plan.makers.empty()) return nb::borrow(out);
  HostPhase phase("plan: results made");
  nb::object tensors[kMaxArrays];
  if (plan.tensors != nullptr && !plan.tensors->make(tensors)) return nb::object();
  std::size_t num_made = 0;
  auto made = [&](std::size_t place) {
    if (!plan.makers[place].is_valid()) {
      return nb::borrow<nb::object>(PyTuple_GET_ITEM(out.ptr(), static_cast<Py_ssize_t>(place)));
    }
    nb::object result =
        plan.tensors != nullptr ? std::move(tensors[num_made++]) : plan.makers[place]();
    return read_result(result, true, call) ? result : nb::object();
  };
  if (!plan.is_tuple) return made(0);
  nb::object results = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(plan.makers.size())));
  for (std::size_t i = 0; i < plan.makers.size(); ++i) {
    nb::object each = made(i);
    if (!each.is_valid()) return each;
    PyTuple_SET_ITEM(results.ptr(), static_cast<Py_ssize_t>(i), each.release().ptr());
  }
  return results;
}

std::shared_ptr<const PlanCache::Plan> PlanCache::plan_of(Call* call) const {
  auto found = plans_.find(call->key.view());
  if (found != plans_.end()) return found->second;
  call->key.words[kOptionWord] = kAnyOption;
  found = plans_.find(call->key.view());
  if (found == plans_.end()) return nullptr;
  const AnyOption& any = found->second->any_option;
  return any.least <= call->option && call->option <= any.most ? found->second : nullptr;
}

void PlanCache::sizes_of(const Plan& plan, const Step& step, const Call& call, Sizes* sizes) {
  sizes->extents = step.extents;
  sizes->said = &step.said;
  if (plan.any_option.named.empty()) return;
  sizes->extents_of_option = step.extents;
  sizes->extents_of_option.back() = call.option;
  sizes->said_of_option = step.said + std::to_string(call.option) + step.said_after;
  sizes->extents = sizes->extents_of_option;
  sizes->said = &sizes->said_of_option;
}

bool PlanCache::open(const AnyOption& any_option, std::int64_t option, Plan* plan) {
  const std::string number = any_option.named + std::to_string(option);
  std::vector<Step> steps = plan->steps;
  for (Step& step : steps) {
    if (step.executable == nullptr) return false;  // whose extents are bytes
    std::size_t at = step.said.find(number), end = at + number.size();
    bool ends = at != std::string::npos &&
                (end == step.said.size() || step.said[end] < '0' || step.said[end] > '9');
    if (!ends || step.extents.empty() || step.extents.back() != option) return false;
    step.said_after = step.said.substr(end);
    step.said.resize(at + any_option.named.size());
  }
  plan->steps = std::move(steps);
  plan->any_option = any_option;
  return true;
}

std::span<std::byte* const> PlanCache::arguments_of(const Step& step, const Call& call,
                                                    std::byte* (&addresses)[kMaxArrays]) {
  for (std::size_t i = 0; i < step.arguments.size(); ++i) {
    const Step::Argument& argument = step.arguments[i];
    addresses[i] = argument.array == Step::Argument::kFixed
                       ? reinterpret_cast<std::byte*>(argument.offset_bytes)
                       : call.views[argument.array].data + argument.offset_bytes;
  }
  return {addresses, step.arguments.size()};
}

void PlanCache::run(const std::shared_ptr<const Plan>& plan, const Call& call,
                    std::uintptr_t stream, Watched* watched) {
  HostPhase phase("plan: steps");
  if (plan->graphs != nullptr && watched == nullptr) return run_as_graph(plan, call, stream);
  for (const Step& step : plan->steps) {
    std::byte* addresses[kMaxArrays];
    std::span<std::byte* const> args = arguments_of(step, call, addresses);
    Sizes sizes;
    sizes_of(*plan, step, call, &sizes);
    if (step.executable != nullptr) {
      step.executable->launch(args, sizes.extents, *sizes.said, stream);
    } else if (call.views[0].device < 0) {
      copy_on_host(step, args);
    } else {
      GpuSide& gpu = session_->gpu();
      cuda::ContextScope scope(*gpu.device().context());
      copy(step, args, gpu.stream(stream));
    }
    if (watched == nullptr) continue;
    Made& made = watched->steps.emplace_back();
    made.executable = step.executable;
    made.extents = {sizes.extents.begin(), sizes.extents.end()};
    made.said = *sizes.said;
    for (std::size_t i = 0; i < args.size(); ++i) {
      auto address = reinterpret_cast<std::uintptr_t>(args[i]);
      made.addresses.push_back(address);
      if (step.arguments[i].array == Step::Argument::kFixed)
        watched->fixed.push_back({address, 1, {}});
    }
  }
  auto is_captured = [](const Step& step) {
    return step.executable != nullptr && step.executable->is_captured();
  };
  if (std::ranges::any_of(plan->steps, is_captured)) captured_.insert(plan);
  if (watched != nullptr) ++watched->num_calls;
}

bool PlanCache::may_be_graph(const Plan& plan, const Call& call) {
  if (!PlanGraphs::are_wanted() || call.views[0].device < 0) return false;
  // An executable knows of one call what is enqueued: its last.
  std::vector<const SessionExecutable*> launched;
  std::size_t enqueued = 0;
  for (const Step& step : plan.steps) {
    enqueued += step.executable == nullptr ? 1 : step.executable->num_enqueued();
    if (step.executable != nullptr) launched.push_back(step.executable.get());
  }
  if (enqueued < 2 || plan.steps.size() > kMaxGraphSteps) return false;
  std::ranges::sort(launched);
  return !launched.empty() && std::ranges::adjacent_find(launched) == launched.end();
}

// A graph is launched on any stream, so that of the capture is not part of the key. Words are
// compared for each launch as if it were by itself: other ranks may have no graph yet.
void PlanCache::run_as_graph(const std::shared_ptr<const Plan>& plan, const Call& call,
                             std::uintptr_t stream) {
  std::uint64_t key[kMaxGraphSteps * (kMaxArrays + 1)];
  std::size_t size = 0;
  SmDemand most{.program = "a plan", .blocks = 0, .cluster = 1};
  for (const Step& step : plan->steps) {
    std::byte* addresses[kMaxArrays];
    std::span<std::byte* const> args = arguments_of(step, call, addresses);
    for (std::byte* address : args) key[size++] = reinterpret_cast<std::uintptr_t>(address);
    if (step.executable == nullptr) continue;
    Sizes sizes;
    sizes_of(*plan, step, call, &sizes);
    step.executable->announce(args, sizes.extents, *sizes.said);
    key[size++] = step.executable->content_of_call();
    std::optional<SmDemand> waiting = step.executable->waiting();
    if (!waiting) continue;
    most = {.program = waiting->program,
            .blocks = std::max(most.blocks, waiting->blocks),
            .cluster = std::max(most.cluster, waiting->cluster)};
  }
  GpuSide& gpu = session_->gpu();
  const cuda::Stream& on = gpu.stream(stream);
  cuda::ContextScope scope(*gpu.device().context());
  const bool is_captured = on.capture_id() != 0;  // by the caller
  const cuda::GraphExec* graph = nullptr;
  if (!is_captured) {
    // Each takes memory of the driver's.
    if (num_graphs_ >= kMaxGraphs) forget_graphs();
    try {
      graph = plan->graphs->find({key, size}, [&] {
        if (!capturing_) capturing_.emplace(gpu.device());
        ++num_graphs_;
        return cuda::capture(*capturing_, [&] { enqueue(*plan, call, *capturing_); });
      });
    } catch (const UserError&) {
      plan->graphs->refuse();
    } catch (const DeviceError&) {
      plan->graphs->refuse();
    }
  }
  if (graph == nullptr) {
    if (is_captured) mark_captured(plan);
    return enqueue(*plan, call, on);
  }
  std::unique_lock<std::mutex> admitted;
  if (most.blocks > 0) {
    HostPhase admitting("launch: admitted beside others");
    admitted = std::move(gpu.world().ledger(rank_)->admit(on, most).lock);
  }
  graph->launch(on);
}

void PlanCache::forget_graphs() {
  for (const auto& [key, plan] : plans_) {
    if (plan->graphs != nullptr) plan->graphs->forget();
  }
  num_graphs_ = 0;
}

void PlanCache::mark_captured(const std::shared_ptr<const Plan>& plan) {
  for (const Step& step : plan->steps) {
    if (step.executable != nullptr) step.executable->mark_captured();
  }
  captured_.insert(plan);
}

void PlanCache::enqueue(const Plan& plan, const Call& call, const cuda::Stream& on) {
  for (const Step& step : plan.steps) {
    std::byte* addresses[kMaxArrays];
    std::span<std::byte* const> args = arguments_of(step, call, addresses);
    if (step.executable != nullptr) {
      Sizes sizes;
      sizes_of(plan, step, call, &sizes);
      step.executable->enqueue(args, sizes.extents, *sizes.said, on);
    } else {
      copy(step, args, on);
    }
  }
}

namespace {

struct RowsOfBytes {
  std::size_t rows, row_bytes, apart_there, apart_here;
};
RowsOfBytes rows_of(const std::vector<std::int64_t>& extents) {
  auto size = [&](std::size_t i) { return static_cast<std::size_t>(extents[i]); };
  return {size(0), size(1), size(2), size(3)};
}

}  // namespace

void PlanCache::copy_on_host(const Step& step, std::span<std::byte* const> addresses) {
  const RowsOfBytes of = rows_of(step.extents);
  for (std::size_t r = 0; r < of.rows; ++r) {
    std::memcpy(addresses[0] + r * of.apart_there, addresses[1] + r * of.apart_here, of.row_bytes);
  }
}

void PlanCache::copy(const Step& step, std::span<std::byte* const> addresses,
                     const cuda::Stream& on) {
  HostPhase phase("copy of rows");
  const RowsOfBytes of = rows_of(step.extents);
  const auto to = reinterpret_cast<CUdeviceptr>(addresses[0]);
  const auto from = reinterpret_cast<CUdeviceptr>(addresses[1]);
  if (of.rows == 1 || (of.apart_there == of.row_bytes && of.apart_here == of.row_bytes)) {
    on.copy(to, from, of.rows * of.row_bytes);
  } else {
    on.copy_rows({.to = to,
                  .from = from,
                  .to_pitch = of.apart_there,
                  .from_pitch = of.apart_here,
                  .row_bytes = of.row_bytes,
                  .rows = of.rows});
  }
}

void PlanCache::watch(Watched* watched) {
  watched_ = watched;
  watching_ = std::this_thread::get_id();
}

PlanCache::Watched* PlanCache::watched_by_this_thread() const {
  return watching_ == std::this_thread::get_id() ? watched_ : nullptr;
}

bool PlanCache::push(const ArrayView& array, Call* call) const {
  if (call->num_arrays + 1 >= kMaxArrays) return false;
  call->views[call->num_arrays] = array;
  bool fits = describe_array(array, call->num_arrays, call);
  call->num_views = ++call->num_arrays;
  return fits;
}

bool PlanCache::repeat(Call* call, const MakeResult& make) {
  HostPhase phase("plan: found, lock given back");
  auto found = plans_.find(call->key.view());
  if (found == plans_.end()) return false;
  Entered entered(*this, rank_);
  std::shared_ptr<const Plan> plan = found->second;
  std::uintptr_t stream = 0;
  int device = call->views[0].device;
  if (device >= 0 && !reader_.current_stream(device, &stream)) return false;
  Interruptible waiting;
  for (const TensorLike& like : plan->results) {
    HostPhase making("plan: results made");
    if (call->num_views == kMaxArrays || !make(like, call)) return false;
  }
  run(plan, *call, stream, nullptr);
  return true;
}

// The array that begins there, or else one that goes on there.
bool PlanCache::find(std::uintptr_t address, const Call& call, Step::Argument* found) {
  bool within = false;
  for (std::size_t i = 0; i < call.num_views; ++i) {
    auto begin = reinterpret_cast<std::uintptr_t>(call.views[i].data);
    if (address == begin) {
      *found = {i, 0};
      return true;
    }
    if (within || address < begin || address - begin > call.views[i].last_offset_bytes()) continue;
    *found = {i, address - begin};
    within = true;
  }
  return within;
}

void PlanCache::add(nb::object op, std::int64_t option, nb::handle out, nb::args arrays,
                    nb::handle result, std::vector<nb::object> makers,
                    const std::vector<Made>& steps, const std::vector<Fixed>& fixed,
                    const AnyOption& any_option) {
  Call call;
  if (!describe(op, option, out, arrays, &call)) return;
  Plan plan{.is_tuple = PyTuple_CheckExact(result.ptr()) != 0};
  nb::tuple results = several(result), given = several(out);
  if (makers.size() != results.size()) return;
  std::vector<nb::object> made;
  bool are_tensors = true;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (i < given.size() && !given[i].is_none()) {
      makers[i].reset();
      continue;
    }
    if (!read_result(results[i], false, &call)) return;
    made.push_back(results[i]);
    are_tensors &= call.views[call.num_views - 1].kind == ArrayView::Kind::kTorch;
  }
  if (!made.empty()) plan.makers = std::move(makers);
  if (!made.empty() && are_tensors) {
    if (abi_ == nullptr) abi_ = TorchAbi::find();
    plan.tensors = TorchResults::like(abi_, made);
  }
  if (!add_steps(call, steps, fixed, &plan)) return;
  plan.kept.push_back(std::move(op));
  for (nb::handle array : arrays) plan.kept.push_back(nb::getattr(array, "dtype"));
  for (nb::handle each : results) plan.kept.push_back(nb::getattr(each, "dtype"));
  if (any_option.least <= option && option <= any_option.most && open(any_option, option, &plan)) {
    call.key.words[kOptionWord] = kAnyOption;
  }
  keep(call, std::move(plan));
}

void PlanCache::add(const Call& call, std::vector<TensorLike> results, const Watched& watched) {
  Plan plan{.results = std::move(results), .kept = watched.owners};
  if (watched.num_calls != 1) return;
  if (!add_steps(call, watched.steps, watched.fixed, &plan)) return;
  for (std::size_t i = call.num_arrays; i < call.num_views; ++i) {
    auto writes = [&](const Step& step) {
      return std::ranges::find(step.arguments, i, &Step::Argument::array) != step.arguments.end();
    };
    if (call.views[i].has_elements() && std::ranges::none_of(plan.steps, writes)) return;
  }
  keep(call, std::move(plan));
}

bool PlanCache::add_steps(const Call& call, const std::vector<Made>& steps,
                          const std::vector<Fixed>& fixed, Plan* plan) {
  for (const Made& made : steps) {
    if (made.addresses.size() > kMaxArrays) return false;
    Step& step = plan->steps.emplace_back();
    step.executable = made.executable;
    step.extents = made.extents;
    step.said = made.said;
    for (std::uintptr_t address : made.addresses) {
      Step::Argument& argument = step.arguments.emplace_back();
      if (find(address, call, &argument)) continue;
      auto has_it = [&](const Fixed& f) {
        return address >= f.address && address - f.address < f.bytes;
      };
      auto there = std::ranges::find_if(fixed, has_it);
      if (there == fixed.end()) return false;
      if (there->owner.is_valid()) plan->kept.push_back(there->owner);
      argument = {Step::Argument::kFixed, address};
    }
  }
  return true;
}

void PlanCache::keep(const Call& call, Plan plan) {
  if (may_be_graph(plan, call)) plan.graphs = std::make_unique<PlanGraphs>();
  if (plans_.size() >= kMaxPlans) plans_.clear();
  plans_.insert_or_assign({call.key.view().begin(), call.key.view().end()},
                          std::make_shared<const Plan>(std::move(plan)));
}

void PlanCache::forget_memory(std::uintptr_t address, std::size_t bytes) {
  std::erase_if(plans_, [&](const auto& plan) {
    auto is_there = [&](const Step::Argument& argument) {
      return argument.array == Step::Argument::kFixed && argument.offset_bytes >= address &&
             argument.offset_bytes - address < bytes;
    };
    return std::ranges::any_of(plan.second->steps, [&](const Step& step) {
      return std::ranges::any_of(step.arguments, is_there);
    });
  });
}

void PlanCache::forget(const SessionExecutable& executable) {
  std::erase_if(plans_, [&](const auto& plan) {
    auto is_it = [&](const Step& step) { return step.executable.get() == &executable; };
    return std::ranges::any_of(plan.second->steps, is_it);
  });
}

}  // namespace stretto::python
