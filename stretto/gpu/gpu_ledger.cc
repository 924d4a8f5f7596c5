#include "stretto/gpu/gpu_ledger.h"

#include <utility>

namespace stretto {
namespace {

// How SmLedger sees the streams of a device.
struct DeviceStreams {
  using Stream = cuda::Stream;
  using Event = cuda::Event;

  static Stream keep(const Stream& s) { return s.share(); }
  static bool same(const Stream& a, const Stream& b) { return a.handle() == b.handle(); }
  static std::uint64_t capture_of(const Stream& s) { return s.capture_id(); }
  Event record(const Stream& s) const {
    Event event(*device);
    s.record(event);
    return event;
  }
  void wait(const Stream& s, const Event& event) const { s.wait(event); }

  const cuda::Device* device;
};

}  // namespace

struct GpuLedger::State {
  State(int ordinal, int num_sms) : device(ordinal), ledger(num_sms, DeviceStreams{&device}) {}

  cuda::Device device;
  SmLedger<DeviceStreams> ledger;
};

GpuLedger::GpuLedger(int ordinal, int num_sms)
    : num_sms_(num_sms), state_(std::make_unique<State>(ordinal, num_sms)) {}

GpuLedger::~GpuLedger() = default;

int GpuLedger::ordinal() const { return state_->device.properties().ordinal; }

GpuLedger::Admitted GpuLedger::admit(const cuda::Stream& stream, const SmDemand& demand) {
  std::unique_lock lock(mutex_);
  bool captured = state_->ledger.admit(stream, demand) != 0;
  return {std::move(lock), captured};
}

void GpuLedger::clear() {
  std::lock_guard lock(mutex_);
  state_->ledger.clear();
}

}  // namespace stretto
