#include "plan_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "gpu_side.h"
#include "interruptible.h"
#include "stretto/base/host_phases.h"

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

bool PlanCache::read_results(nb::handle result, bool made, Call* call) const {
  call->num_views = call->num_arrays;
  if (result.is_none()) return true;
  auto read = [&](nb::handle array) {
    if (call->num_views == kMaxArrays) return false;
    ArrayView* view = &call->views[call->num_views++];
    return made ? reader_.read_made(array, view) : reader_.read(array, view);
  };
  if (!PyTuple_CheckExact(result.ptr())) return read(result);
  for (nb::handle each : nb::borrow<nb::tuple>(result)) {
    if (!read(each)) return false;
  }
  return true;
}

bool PlanCache::describe(nb::handle op, std::int64_t option, nb::handle out, const nb::args& arrays,
                         Call* call) const {
  HostPhase phase("plan: arguments read");
  std::size_t num_arrays = arrays.size();
  if (num_arrays >= kMaxArrays) return false;
  call->num_arrays = num_arrays;
  call->key.push(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(op.ptr())));
  call->key.push(option);
  for (std::size_t i = 0; i < num_arrays; ++i) {
    ArrayView& view = call->views[i];
    if (!reader_.read(arrays[i], &view) || !describe_array(view, i, call)) return false;
  }
  if (out.is_none()) return true;
  if (!read_results(out, false, call)) return false;
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
  auto found = plans_.find(call.key.view());
  if (found == plans_.end()) return nb::object();
  Entered entered(*this, rank_);
  std::shared_ptr<const Plan> plan = found->second;
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    HostPhase making("plan: results made");
    result = plan->make();
    if (!read_results(result, true, &call)) return nb::object();
  }
  std::uintptr_t stream = 0;
  int device = call.views[0].device;
  if (device >= 0 && !reader_.current_stream(device, &stream)) return nb::object();
  bool is_tensor = call.views[0].kind == ArrayView::Kind::kTorch;
  if (!out.is_none() && is_tensor) reader_.count_write(out);
  Watched* watched = watched_by_this_thread();
  if (watched != nullptr) {
    watched->owners.insert(watched->owners.end(), plan->kept.begin(), plan->kept.end());
  }
  Interruptible waiting;
  run(plan, call, stream, watched);
  return result;
}

void PlanCache::run(const std::shared_ptr<const Plan>& plan, const Call& call,
                    std::uintptr_t stream, Watched* watched) {
  HostPhase phase("plan: steps");
  for (const Step& step : plan->steps) {
    std::byte* addresses[kMaxArrays];
    for (std::size_t i = 0; i < step.arguments.size(); ++i) {
      const Step::Argument& argument = step.arguments[i];
      addresses[i] = argument.array == Step::Argument::kFixed
                         ? reinterpret_cast<std::byte*>(argument.offset_bytes)
                         : call.views[argument.array].data + argument.offset_bytes;
    }
    std::span<std::byte* const> args(addresses, step.arguments.size());
    if (step.executable != nullptr) {
      step.executable->launch(args, step.extents, step.said, stream);
    } else {
      copy(call, step, addresses, stream);
    }
    if (watched == nullptr) continue;
    Made& made = watched->steps.emplace_back();
    made.executable = step.executable;
    made.extents = step.extents;
    made.said = step.said;
    for (std::size_t i = 0; i < args.size(); ++i) {
      auto address = reinterpret_cast<std::uintptr_t>(args[i]);
      made.addresses.push_back(address);
      if (step.arguments[i].array == Step::Argument::kFixed) watched->fixed.push_back({address, 1, {}});
    }
  }
  auto is_captured = [](const Step& step) {
    return step.executable != nullptr && step.executable->is_captured();
  };
  if (std::ranges::any_of(plan->steps, is_captured)) captured_.insert(plan);
  if (watched != nullptr) ++watched->num_calls;
}

void PlanCache::copy(const Call& call, const Step& step, std::byte* const* addresses,
                     std::uintptr_t stream) {
  const auto [rows, row_bytes, apart_there, apart_here] = std::tuple(
      static_cast<std::size_t>(step.extents[0]), static_cast<std::size_t>(step.extents[1]),
      static_cast<std::size_t>(step.extents[2]), static_cast<std::size_t>(step.extents[3]));
  if (call.views[0].device < 0) {
    for (std::size_t r = 0; r < rows; ++r) {
      std::memcpy(addresses[0] + r * apart_there, addresses[1] + r * apart_here, row_bytes);
    }
    return;
  }
  HostPhase phase("copy of rows");
  GpuSide& gpu = session_->gpu();
  const cuda::Stream& on = gpu.stream(stream);
  cuda::ContextScope scope(*gpu.device().context());
  const auto to = reinterpret_cast<CUdeviceptr>(addresses[0]);
  const auto from = reinterpret_cast<CUdeviceptr>(addresses[1]);
  if (rows == 1 || (apart_there == row_bytes && apart_here == row_bytes)) {
    on.copy(to, from, rows * row_bytes);
  } else {
    on.copy_rows({.to = to,
                  .from = from,
                  .to_pitch = apart_there,
                  .from_pitch = apart_here,
                  .row_bytes = row_bytes,
                  .rows = rows});
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
                    nb::handle result, nb::object make, const std::vector<Made>& steps,
                    const std::vector<Fixed>& fixed) {
  Call call;
  if (!describe(op, option, out, arrays, &call) || !read_results(result, false, &call)) return;
  Plan plan{.steps = {}, .make = std::move(make), .results = {}, .kept = {}};
  if (!add_steps(call, steps, fixed, &plan)) return;
  plan.kept.push_back(std::move(op));
  for (nb::handle array : arrays) plan.kept.push_back(nb::getattr(array, "dtype"));
  nb::object results = result.is_none()                    ? nb::object(nb::make_tuple())
                       : PyTuple_CheckExact(result.ptr()) ? nb::borrow(result)
                                                           : nb::object(nb::make_tuple(result));
  for (nb::handle each : results) plan.kept.push_back(nb::getattr(each, "dtype"));
  keep(call, std::move(plan));
}

void PlanCache::add(const Call& call, std::vector<TensorLike> results, const Watched& watched) {
  Plan plan{.steps = {}, .make = {}, .results = std::move(results), .kept = watched.owners};
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
