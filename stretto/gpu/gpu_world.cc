#include "stretto/gpu/gpu_world.h"

#include <fmt/format.h>

#include <cstring>

#include "stretto/base/env.h"

namespace stretto {
namespace {

constexpr int kHopper = 9;

}  // namespace

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
}

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

int GpuWorld::add_fault_source(DescribeFault describe) {
  fault_sources_[next_fault_source_] = std::move(describe);
  return next_fault_source_++;
}

void GpuWorld::remove_fault_source(int id) { fault_sources_.erase(id); }

void GpuWorld::throw_fault() const {
  DeviceFault f = fault();
  FaultRecord record{.reason = "deadline"};
  if (f.ready != 0) {
    auto source = fault_sources_.find(f.rank / kFaultSources);
    f.rank %= kFaultSources;
    if (source != fault_sources_.end()) record = source->second(f);
  }
  throw Fault(std::move(record));
}

void GpuWorld::clear_fault() { std::memset(shared_->host(), 0, shared_->bytes()); }

}  // namespace stretto
