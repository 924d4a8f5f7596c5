#include "stretto/gpu/gpu_ledger.h"

#include <memory>
#include <utility>
#include <vector>

namespace stretto {
namespace {

// Of a device. What nobody is to wait for any more is recorded again: where streams take turns,
// each launch would make some and destroy others.
class Events {
 public:
  struct Return {
    Events* to;
    void operator()(cuda::Event* event) const { to->unused_.emplace_back(event); }
  };
  using Event = std::unique_ptr<cuda::Event, Return>;

  explicit Events(const cuda::Device& device) : device_(device) {}

  Event record(const cuda::Stream& stream) {
    if (unused_.empty()) unused_.push_back(std::make_unique<cuda::Event>(device_));
    Event event(unused_.back().release(), {this});
    unused_.pop_back();
    stream.record(*event);
    return event;
  }

 private:
  const cuda::Device& device_;
  std::vector<std::unique_ptr<cuda::Event>> unused_;
};

// How SmLedger sees the streams of a device.
struct DeviceStreams {
  using Stream = cuda::Stream;
  using Event = Events::Event;

  static Stream keep(const Stream& s) { return s.share(); }
  static bool same(const Stream& a, const Stream& b) { return a.handle() == b.handle(); }
  static std::uint64_t capture_of(const Stream& s) { return s.capture_id(); }
  Event record(const Stream& s) const { return events->record(s); }
  void wait(const Stream& s, const Event& event) const { s.wait(*event); }

  Events* events;
};

}  // namespace

struct GpuLedger::State {
  State(int ordinal, int num_sms)
      : device(ordinal), events(device), ledger(num_sms, DeviceStreams{&events}) {}

  cuda::Device device;
  Events events;
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
