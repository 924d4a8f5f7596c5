#include "stretto/gpu/gpu_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "stretto/base/env.h"
#include "stretto/gpu/issue_order.h"

namespace stretto {
namespace {

constexpr int kHopper = 9;

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

struct GpuWorld::Admission {
  Admission(const std::vector<cuda::Device>& devices, int reserved)
      : order(static_cast<int>(devices.size())) {
    sms = devices.front().properties().num_sms;
    for (const cuda::Device& d : devices) sms = std::min(sms, d.properties().num_sms);
    sms -= reserved;
    if (reserved < 0 || sms < 1) {
      throw UserError(fmt::format("a world with {} of {} SMs reserved", reserved, sms + reserved));
    }
    for (const cuda::Device& d : devices) ledgers.emplace_back(sms, DeviceStreams{&d});
  }

  int sms = 0;
  std::vector<SmLedger<DeviceStreams>> ledgers;  // [rank]
  IssueOrder order;
};

std::vector<CUdeviceptr> SymmetricGpuMemory::addresses() const {
  std::vector<CUdeviceptr> out;
  for (const cuda::DeviceMemory& m : on) out.push_back(m.address());
  return out;
}

GpuWorld::GpuWorld(const GpuWorldOptions& options)
    : timeout_(options.timeout.count() > 0 ? options.timeout : env_timeout()) {
  if (options.size < 1) {
    throw UserError(fmt::format("a world of {} ranks, need at least 1", options.size));
  }
  for (int r = 0; r < options.size; ++r) {
    devices_.emplace_back(r);
    const cuda::DeviceProperties& p = devices_.back().properties();
    if (p.cc_major != kHopper) {
      throw DeviceError(
          fmt::format("GPU {} ({}) has compute capability {}.{}, kernels are made "
                      "for 9.0",
                      r, p.name, p.cc_major, p.cc_minor));
    }
  }
  for (const cuda::Device& a : devices_) {
    streams_.emplace_back(a);
    for (const cuda::Device& b : devices_) {
      if (&a == &b) continue;
      if (!a.can_access(b) || !a.has_native_atomics(b)) {
        throw DeviceError(fmt::format("GPU {} cannot address the memory of GPU {}",
                                      a.properties().ordinal, b.properties().ordinal));
      }
      a.enable_peer_access(b);
    }
  }
  shared_ = std::make_unique<cuda::HostMappedMemory>(devices_.front(), 256);
  admission_ = std::make_unique<Admission>(devices_, options.reserved_sms);
}

GpuWorld::~GpuWorld() = default;

SymmetricGpuMemory GpuWorld::allocate(std::size_t bytes) const {
  SymmetricGpuMemory out;
  for (const cuda::Device& d : devices_) out.on.emplace_back(d, bytes);
  return out;
}

void GpuWorld::synchronize() const {
  for (const cuda::Stream& s : streams_) s.synchronize();
}

DeviceFault GpuWorld::fault() const {
  DeviceFault out;
  std::memcpy(&out, static_cast<const std::byte*>(shared_->host()) + kFaultOffset, sizeof(out));
  return out;
}

bool GpuWorld::aborted() const {
  return *static_cast<const volatile std::uint64_t*>(shared_->host()) != 0;
}

int GpuWorld::add_fault_source(std::string name, DescribeFault describe) {
  fault_sources_[next_fault_source_] = {std::move(name), std::move(describe)};
  return next_fault_source_++;
}

void GpuWorld::remove_fault_source(int id) { fault_sources_.erase(id); }

void GpuWorld::throw_fault() const {
  DeviceFault f = fault();
  FaultRecord record{.reason = "deadline"};
  if (f.ready != 0) {
    auto source = fault_sources_.find(f.rank / kFaultSources);
    f.rank %= kFaultSources;
    if (source != fault_sources_.end()) record = source->second.describe(f);
  }
  throw Fault(std::move(record));
}

void GpuWorld::clear_fault() {
  std::memset(shared_->host(), 0, shared_->bytes());
  for (SmLedger<DeviceStreams>& ledger : admission_->ledgers) ledger.clear();
  admission_->order.clear();
}

int GpuWorld::sms_for_waiting() const { return admission_->sms; }

std::string GpuWorld::name_of(int fault_source) const {
  auto source = fault_sources_.find(fault_source);
  return fmt::format("{} (instance {})",
                     source == fault_sources_.end() ? "a deleted program" : source->second.name,
                     fault_source);
}

void GpuWorld::admit(int id, int rank, const SmDemand& demand, const cuda::Stream& stream) {
  bool captured = admission_->ledgers[static_cast<std::size_t>(rank)].admit(stream, demand) != 0;
  if (captured) return;
  auto clash = admission_->order.launch(rank, id);
  if (!clash) return;
  throw UserError(
      fmt::format("launch {} of rank {} is of {}, that of rank {} was of {}: kernels that wait for "
                  "other ranks are launched in the same order on all of them",
                  clash->place, rank, name_of(id), clash->rank, name_of(clash->instance)));
}

}  // namespace stretto
