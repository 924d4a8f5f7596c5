#include "plan_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "interruptible.h"

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
  Call call;
  if (!describe(op, option, out, arrays, &call)) return nb::object();
  auto found = plans_.find(call.key.view());
  if (found == plans_.end()) return nb::object();
  Entered entered(*this, rank_);
  std::shared_ptr<const Plan> plan = found->second;
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    result = plan->make();
    if (!read_results(result, true, &call)) return nb::object();
  }
  std::uintptr_t stream = 0;
  int device = call.views[0].device;
  if (device >= 0 && !reader_.current_stream(device, &stream)) return nb::object();
  bool is_tensor = call.views[call.num_arrays].kind == ArrayView::Kind::kTorch;
  if (!out.is_none() && is_tensor) reader_.count_write(out);
  Watched* watched = watched_by_this_thread();
  Interruptible waiting;
  launch(*plan, call, stream, watched);
  return result;
}

void PlanCache::launch(const Plan& plan, const Call& call, std::uintptr_t stream,
                       Watched* watched) {
  for (const Launch& launch : plan.launches) {
    std::byte* addresses[kMaxArrays];
    for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
      const Launch::Argument& argument = launch.arguments[i];
      addresses[i] = argument.array == Launch::Argument::kFixed
                         ? reinterpret_cast<std::byte*>(argument.offset_bytes)
                         : call.views[argument.array].data + argument.offset_bytes;
    }
    std::span<std::byte* const> args(addresses, launch.arguments.size());
    launch.executable->launch(args, launch.extents, launch.said, stream);
    if (watched == nullptr) continue;
    Made& made = watched->launches.emplace_back();
    made.executable = launch.executable;
    made.extents = launch.extents;
    made.said = launch.said;
    for (std::size_t i = 0; i < args.size(); ++i) {
      auto address = reinterpret_cast<std::uintptr_t>(args[i]);
      made.addresses.push_back(address);
      if (launch.arguments[i].array == Launch::Argument::kFixed) watched->fixed.push_back(address);
    }
  }
  if (watched != nullptr) ++watched->num_calls;
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
  auto found = plans_.find(call->key.view());
  if (found == plans_.end()) return false;
  Entered entered(*this, rank_);
  std::shared_ptr<const Plan> plan = found->second;
  std::uintptr_t stream = 0;
  int device = call->views[0].device;
  if (device >= 0 && !reader_.current_stream(device, &stream)) return false;
  Interruptible waiting;
  for (const TensorLike& like : plan->results) {
    if (call->num_views == kMaxArrays || !make(like, call)) return false;
  }
  launch(*plan, *call, stream, nullptr);
  return true;
}

// The array that begins there, or else one that goes on there.
bool PlanCache::find(std::uintptr_t address, const Call& call, Launch::Argument* found) {
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
                    nb::handle result, nb::object make, const std::vector<Made>& launches,
                    const std::vector<std::uintptr_t>& fixed) {
  Call call;
  if (!describe(op, option, out, arrays, &call) || !read_results(result, false, &call)) return;
  Plan plan{.launches = {}, .make = std::move(make), .results = {}, .kept = {}};
  if (!add_launches(call, launches, fixed, &plan)) return;
  plan.kept.push_back(std::move(op));
  for (nb::handle array : arrays) plan.kept.push_back(nb::getattr(array, "dtype"));
  nb::object results =
      PyTuple_CheckExact(result.ptr()) ? nb::borrow(result) : nb::object(nb::make_tuple(result));
  for (nb::handle each : results) plan.kept.push_back(nb::getattr(each, "dtype"));
  keep(call, std::move(plan));
}

void PlanCache::add(const Call& call, std::vector<TensorLike> results, const Watched& watched) {
  Plan plan{.launches = {}, .make = {}, .results = std::move(results), .kept = {}};
  if (watched.num_calls != 1) return;
  if (!add_launches(call, watched.launches, watched.fixed, &plan)) return;
  for (std::size_t i = call.num_arrays; i < call.num_views; ++i) {
    auto writes = [&](const Launch& launch) {
      return std::ranges::find(launch.arguments, i, &Launch::Argument::array) !=
             launch.arguments.end();
    };
    if (call.views[i].has_elements() && std::ranges::none_of(plan.launches, writes)) return;
  }
  keep(call, std::move(plan));
}

bool PlanCache::add_launches(const Call& call, const std::vector<Made>& launches,
                             const std::vector<std::uintptr_t>& fixed, Plan* plan) {
  for (const Made& made : launches) {
    if (made.addresses.size() > kMaxArrays) return false;
    Launch& launch = plan->launches.emplace_back();
    launch.executable = made.executable;
    launch.extents = made.extents;
    launch.said = made.said;
    for (std::uintptr_t address : made.addresses) {
      Launch::Argument& argument = launch.arguments.emplace_back();
      if (find(address, call, &argument)) continue;
      if (std::ranges::find(fixed, address) == fixed.end()) return false;
      argument = {Launch::Argument::kFixed, address};
    }
  }
  return true;
}

void PlanCache::keep(const Call& call, Plan plan) {
  if (plans_.size() >= kMaxPlans) plans_.clear();
  plans_.insert_or_assign({call.key.view().begin(), call.key.view().end()},
                          std::make_shared<const Plan>(std::move(plan)));
}

void PlanCache::forget(const SessionExecutable& executable) {
  std::erase_if(plans_, [&](const auto& plan) {
    auto is_it = [&](const Launch& launch) { return launch.executable.get() == &executable; };
    return std::ranges::any_of(plan.second->launches, is_it);
  });
}

}  // namespace stretto::python
