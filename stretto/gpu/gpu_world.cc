#include "stretto/gpu/gpu_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "stretto/base/env.h"
#include "stretto/gpu/gpu_processes.h"
#include "stretto/gpu/gpu_requirements.h"
#include "stretto/gpu/issue_order.h"

namespace stretto {

struct GpuWorld::Admission {
  // `shared`: another world's ledger, which serves where it is of the same GPU; may be null.
  Admission(const std::vector<cuda::Device>& devices, int reserved,
            std::shared_ptr<GpuLedger> shared)
      : order(static_cast<int>(devices.size())) {
    sms = devices.front().properties().num_sms;
    for (const cuda::Device& d : devices) sms = std::min(sms, d.properties().num_sms);
    sms -= reserved;
    if (reserved < 0 || sms < 1) {
      throw UserError(fmt::format("a world with {} of {} SMs reserved", reserved, sms + reserved));
    }
    for (const cuda::Device& d : devices) {
      int ordinal = d.properties().ordinal;
      bool fits = shared && shared->ordinal() == ordinal && shared->num_sms() == sms;
      ledgers.push_back(fits ? shared : std::make_shared<GpuLedger>(ordinal, sms));
    }
  }

  int sms = 0;
  std::vector<std::shared_ptr<GpuLedger>> ledgers;  // [local rank]
  IssueOrder order;
};

std::vector<CUdeviceptr> SymmetricGpuMemory::addresses() const {
  std::vector<CUdeviceptr> out;
  for (const cuda::DeviceMemory& m : on) out.push_back(m.address());
  return out;
}

void GpuWorld::add_device(int ordinal) {
  devices_.emplace_back(ordinal);
  require_hopper(devices_.back().properties());
}

GpuWorld::GpuWorld(const GpuWorldOptions& options)
    : size_(options.size), timeout_(options.timeout.count() > 0 ? options.timeout : env_timeout()) {
  if (options.size < 1) {
    throw UserError(fmt::format("a world of {} ranks, need at least 1", options.size));
  }
  local_ranks_.resize(static_cast<std::size_t>(size_));
  std::iota(local_ranks_.begin(), local_ranks_.end(), 0);
  for (int r : local_ranks_) add_device(r);
  for (const cuda::Device& a : devices_) {
    streams_.emplace_back(a);
    met_.emplace_back(a);
    for (const cuda::Device& b : devices_) {
      if (&a == &b) continue;
      require_peers(a.properties(), b.properties(),
                    {.addresses = a.can_access(b), .atomics = a.has_native_atomics(b)});
      a.enable_peer_access(b);
    }
  }
  own_words_ = std::make_unique<cuda::HostMappedMemory>(devices_.front(), kSharedBytes);
  shared_ = static_cast<std::byte*>(own_words_->host());
  shared_address_ = own_words_->address();
  admission_ = std::make_unique<Admission>(devices_, options.reserved_sms, nullptr);
}

GpuWorld::GpuWorld(Rank& rank, const GpuProcessOptions& options)
    : size_(rank.size()),
      local_ranks_{rank.index()},
      timeout_(options.timeout.count() > 0 ? options.timeout : rank.timeout()) {
  processes_ = std::make_unique<Processes>(rank, kSharedBytes);
  shared_ = processes_->words();
  processes_->watch([this] { abort(); });
  GpuSeats seats(rank);
  seats.agree([&] {
    add_device(options.device >= 0 ? options.device : local_rank_of_environment(rank.index()));
    streams_.emplace_back(devices_.front());
    admission_ = std::make_unique<Admission>(devices_, options.reserved_sms, options.ledger);
    processes_->show_to(devices_.front());
    return devices_.front().properties().pci;
  });
  if (!options.share_devices) seats.require_own_devices();
  shared_address_ = processes_->address();
}

GpuWorld::~GpuWorld() = default;

std::size_t GpuWorld::local_index(int rank) const {
  int index = rank - local_ranks_.front();
  STRETTO_CHECK(index >= 0 && index < static_cast<int>(local_ranks_.size()),
                fmt::format("rank {} is not one of this process", rank));
  return static_cast<std::size_t>(index);
}

SymmetricGpuMemory GpuWorld::allocate(std::size_t bytes) const {
  if (processes_) return processes_->allocate(devices_.front(), bytes);
  SymmetricGpuMemory out;
  for (const cuda::Device& d : devices_) out.on.emplace_back(d, bytes);
  return out;
}

void GpuWorld::synchronize() const {
  if (processes_) processes_->await(streams_.front(), [this] { abort(); });
  for (const cuda::Stream& s : streams_) s.synchronize();
}

void GpuWorld::meet() const {
  synchronize();
  if (processes_) processes_->rank().barrier();
}

void GpuWorld::meet_on_streams() const {
  if (processes_) {
    return processes_->meet_on(streams_.front(), shared_address_ + kMeetingsOffset);
  }
  for (std::size_t r = 0; r < streams_.size(); ++r) streams_[r].record(met_[r]);
  for (std::size_t r = 0; r < streams_.size(); ++r) {
    for (std::size_t other = 0; other < met_.size(); ++other) {
      if (other != r) streams_[r].wait(met_[other]);
    }
  }
}

std::vector<std::vector<std::byte>> GpuWorld::exchange(std::span<const std::byte> own) const {
  if (processes_) return exchange_bytes(processes_->rank(), own);
  return {{own.begin(), own.end()}};
}

void GpuWorld::abort() const {
  *reinterpret_cast<volatile std::uint64_t*>(shared_) = 1;
  if (processes_) processes_->end_meetings(shared_ + kMeetingsOffset);
}

// A second thread that aborts may raise the abort word while the first still writes the record.
DeviceFault GpuWorld::fault() const {
  constexpr std::chrono::milliseconds kLongest{1000}, kLook{1};
  auto end = std::chrono::steady_clock::now() + kLongest;
  DeviceFault out;
  while (true) {
    std::memcpy(&out, shared_ + kFaultOffset, sizeof(out));
    bool is_written = out.claimed == 0 || out.ready != 0;
    if (is_written || std::chrono::steady_clock::now() > end) break;
    std::this_thread::sleep_for(kLook);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  std::memcpy(&out, shared_ + kFaultOffset, sizeof(out));  // what was written before `ready`
  return out;
}

bool GpuWorld::aborted() const {
  if (processes_ && processes_->rank().aborted()) return true;
  return *reinterpret_cast<const volatile std::uint64_t*>(shared_) != 0;
}

int GpuWorld::add_fault_source(std::string name, DescribeFault describe) {
  fault_sources_[next_fault_source_] = {std::move(name), std::move(describe)};
  return next_fault_source_++;
}

void GpuWorld::remove_fault_source(int id) { fault_sources_.erase(id); }

void GpuWorld::throw_fault() const {
  if (processes_ && processes_->rank().aborted()) processes_->rank().throw_fault();
  DeviceFault f = fault();
  FaultRecord record{.reason = "deadline"};
  if (f.ready != 0) {
    auto source = fault_sources_.find(f.rank / kFaultSources);
    f.rank %= kFaultSources;
    if (source != fault_sources_.end()) record = source->second.describe(f);
  }
  if (processes_) processes_->rank().raise_fault(std::move(record));
  throw Fault(std::move(record));
}

void GpuWorld::clear_fault() {
  // By one process, while no other launches.
  if (processes_) processes_->rank().barrier();
  if (local_ranks_.front() == 0) std::memset(shared_, 0, kSharedBytes);
  if (processes_) processes_->begin_meetings();
  if (processes_) processes_->rank().barrier();
  for (const auto& ledger : admission_->ledgers) ledger->clear();
  admission_->order.clear();
}

int GpuWorld::sms_for_waiting() const { return admission_->sms; }

std::shared_ptr<GpuLedger> GpuWorld::ledger(int rank) const {
  return admission_->ledgers[local_index(rank)];
}

std::string GpuWorld::name_of(int fault_source) const {
  auto source = fault_sources_.find(fault_source);
  return fmt::format("{} (instance {})",
                     source == fault_sources_.end() ? "a deleted program" : source->second.name,
                     fault_source);
}

std::vector<RankStream> GpuWorld::local_streams() const {
  std::vector<RankStream> out;
  for (int rank : local_ranks_) out.push_back({rank, &stream(rank)});
  return out;
}

GpuTarget GpuWorld::target() const { return {.sms = devices_.front().properties().num_sms}; }

std::unique_lock<std::mutex> GpuWorld::admit(int id, int rank, const SmDemand& demand,
                                             const cuda::Stream& stream) {
  std::size_t local = local_index(rank);
  GpuLedger::Admitted admitted = admission_->ledgers[local]->admit(stream, demand);
  if (admitted.captured) return std::move(admitted.lock);
  auto clash = admission_->order.launch(static_cast<int>(local), id);
  if (!clash) return std::move(admitted.lock);
  throw UserError(
      fmt::format("launch {} of rank {} is of {}, that of rank {} was of {}: kernels that wait for "
                  "other ranks are launched in the same order on all of them",
                  clash->place, rank, name_of(id),
                  local_ranks_[static_cast<std::size_t>(clash->rank)], name_of(clash->instance)));
}

}  // namespace stretto
