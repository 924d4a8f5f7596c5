#include "stretto/base/host_phases.h"

#include <algorithm>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

thread_local HostPhases* measured = nullptr;

}  // namespace

HostPhases::HostPhases() {
  if (measured != nullptr) throw UserError("host phases: this thread is being measured");
  constexpr std::size_t kMostPhases = 128, kMostWithin = 32;  // before anything is allocated
  phases_.reserve(kMostPhases);
  within_.reserve(kMostWithin);
  measured = this;
  ++num_measured;
}

std::map<std::string, HostPhases::Spent> HostPhases::finish() {
  if (!is_on_) return {};
  is_on_ = false;
  measured = nullptr;
  --num_measured;
  std::map<std::string, Spent> out;
  for (const Phase& phase : phases_) {
    Spent& sum = out[phase.name];
    sum.count += phase.spent.count;
    sum.ns += phase.spent.ns;
  }
  return out;
}

HostPhases* HostPhases::of_this_thread() { return measured; }

void HostPhases::charge() {
  const Clock::time_point now = Clock::now();
  if (!within_.empty()) {
    phases_[within_.back()].spent.ns +=
        std::chrono::duration<double, std::nano>(now - since_).count();
  }
  since_ = now;
}

void HostPhases::enter(const char* name) {
  auto known = std::ranges::find(phases_, name, &Phase::name);
  if (known == phases_.end()) {
    phases_.push_back({name, {}});
    known = phases_.end() - 1;
  }
  ++known->spent.count;
  charge();
  within_.push_back(static_cast<std::size_t>(known - phases_.begin()));
}

void HostPhases::leave() {
  charge();
  within_.pop_back();
}

}  // namespace stretto
