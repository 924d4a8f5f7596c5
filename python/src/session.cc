#include "session.h"

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <utility>

#include "gpu_session_executable.h"
#include "stretto/runtime/recorder.h"

namespace stretto::python {

std::shared_ptr<GpuLedger> SharedLedger::get() {
  std::lock_guard lock(mutex_);
  return ledger_;
}

void SharedLedger::set(std::shared_ptr<GpuLedger> ledger) {
  std::lock_guard lock(mutex_);
  ledger_ = std::move(ledger);
}

Session::Session(std::shared_ptr<World> world, std::shared_ptr<SharedLedger> ledger)
    : world_(std::move(world)),
      ledger_(ledger ? std::move(ledger) : std::make_shared<SharedLedger>()),
      num_launches_(static_cast<std::size_t>(world_->size())),
      memories_(static_cast<std::size_t>(world_->size())),
      memories_made_(memories_.size()),
      finalized_(memories_.size()),
      num_open_(static_cast<int>(world_->local_ranks().size())) {}

void Session::require_open(int rank) const {
  if (num_open_ == 0 || finalized_.at(static_cast<std::size_t>(rank))) {
    throw UserError(fmt::format("rank {}: stretto is used after finalize()", rank));
  }
}

Rank& Session::rank(int index) {
  std::lock_guard lock(mutex_);
  require_open(index);
  return world_->rank(index);
}

std::pair<std::shared_ptr<Session>, int> Session::split(int rank, const std::vector<int>& group,
                                                        const std::string& request) {
  agree(rank, request);
  std::shared_ptr<Rank> part = this->rank(rank).split(group);
  if (part == nullptr) return {nullptr, -1};
  std::lock_guard lock(mutex_);
  std::erase_if(parts_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Session>& entry = parts_[&part->world()];
  std::shared_ptr<Session> session = entry.lock();
  if (session == nullptr) {
    std::shared_ptr<World> world(part, &part->world());
    session = std::make_shared<Session>(std::move(world), ledger_);
    entry = session;
  }
  return {std::move(session), part->index()};
}

void Session::open_gpu(const GpuSide::Options& options) {
  std::lock_guard lock(mutex_);
  require_open(local_rank());
  if (!gpu_) {
    GpuSide::Options shared = options;
    shared.ledger = ledger_->get();
    gpu_ = std::make_unique<GpuSide>(*world_, shared);
    ledger_->set(gpu_->ledger());
  }
  if (gpu_->ordinal() == options.device) return;
  throw UserError(fmt::format("rank {}: arrays on GPU {}, and this rank is on GPU {}", local_rank(),
                              options.device, gpu_->ordinal()));
}

GpuSide& Session::gpu() {
  std::lock_guard lock(mutex_);
  require_open(local_rank());
  STRETTO_CHECK(gpu_ != nullptr, "no GPU has been opened");
  return *gpu_;
}

void Session::add_executable(GpuSessionExecutable& executable) {
  std::lock_guard lock(mutex_);
  executables_.push_back(&executable);
}

void Session::remove_executable(GpuSessionExecutable& executable) noexcept {
  std::lock_guard lock(mutex_);
  std::erase(executables_, &executable);
}

void Session::retire(SymmetricGpuMemory memory) noexcept {
  std::lock_guard lock(mutex_);
  if (gpu_) gpu_->retire(std::move(memory));
}

void Session::record(bool on) {
  std::lock_guard lock(mutex_);
  require_open(local_rank());
  world_->recorder().set_enabled(on);
  if (!gpu_) return;
  gpu_->synchronize();
  for (GpuSessionExecutable* executable : executables_) executable->record(on, world_->recorder());
}

void Session::write_trace(const std::string& path, const std::vector<Named>& sessions) {
  std::vector<Recorder::Group> parts;
  for (const auto& [session, name] : sessions) {
    parts.push_back({&session->world().recorder(), name});
  }
  Recorder::write_trace(path, parts);
}

void Session::forget_recording() { world_->recorder().clear(); }

void Session::agree(int rank, const std::string& call) {
  this->rank(rank).agree(call, std::hash<std::string>()(call));
}

bool Session::same(int rank, const std::string& call, std::uint64_t content) {
  return this->rank(rank).same(call, content);
}

void Session::refuse(int rank, const std::string& call, const std::string& reason) {
  Rank& own = this->rank(rank);
  std::uint64_t before = own.num_calls();
  own.refuse(call, reason);  // first: others that see the GPU's word look here for the reason
  GpuSide* gpu = nullptr;
  {
    std::lock_guard lock(mutex_);
    gpu = gpu_.get();
  }
  if (gpu != nullptr) gpu->refuse(call, before);
}

void Session::check() {
  std::lock_guard lock(mutex_);
  if (gpu_ && gpu_->world().aborted()) gpu_->world().throw_fault();
}

void Session::fail(int rank, const std::string& reason) {
  try {
    this->rank(rank).raise_fault(
        {.program = "world", .role = "run", .rank = rank, .waited_for = rank, .reason = reason});
  } catch (const Fault&) {
  }
  std::lock_guard lock(mutex_);
  if (gpu_) gpu_->world().abort();
}

const SymmetricMemory* Session::find_memory(int rank, const std::byte* address) {
  std::lock_guard lock(mutex_);
  const auto& memories = memories_[static_cast<std::size_t>(rank)];
  auto found = memories.upper_bound(address);
  if (found == memories.end() || address < found->second->data()) return nullptr;
  return found->second;
}

std::uint64_t Session::add_memory(int rank, const SymmetricMemory& memory) {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank)].emplace(memory.data() + memory.bytes(), &memory);
  if (!memory.is_on_gpu()) ++num_memories_;
  return memories_made_[static_cast<std::size_t>(rank)]++;
}

void Session::remove_memory(Rank& rank, const SymmetricMemory& memory) noexcept {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank.index())].erase(memory.data() + memory.bytes());
  if (memory.is_on_gpu()) return;
  --num_memories_;
  if (left_) return;
  try {
    rank.release(memory.buffer());
    if (num_open_ == 0 && num_memories_ == 0) leave();
  } catch (const std::exception&) {  // a forked child: the memory is its parent's
  }
}

void Session::finalize(int rank, bool at_once) {
  std::lock_guard lock(mutex_);
  auto index = static_cast<std::size_t>(rank);
  if (!finalized_.at(index)) --num_open_;
  finalized_[index] = true;
  if (num_open_ > 0) return;
  for (GpuSessionExecutable* executable : executables_) executable->close();
  gpu_.reset();
  if (left_ || (num_memories_ > 0 && !at_once)) return;
  leave();
}

void Session::leave() {
  left_ = true;
  world_->finalise();
}

void Session::recover() {
  std::unique_lock lock(mutex_);
  require_open(local_rank());
  auto num_local = static_cast<int>(world_->local_ranks().size());
  std::uint64_t mine = num_recoveries_;
  if (++num_recovering_ < num_local) {
    if (changed_.wait_for(lock, world_->timeout(), [&] { return num_recoveries_ != mine; })) return;
    int came = num_recovering_--;
    throw UserError(
        fmt::format("stretto.recover(): only {} of {} ranks called it", came, num_local));
  }
  num_recovering_ = 0;
  world_->recover();
  if (gpu_) gpu_->recover();
  for (GpuSessionExecutable* executable : executables_) executable->recover();
  ++num_recoveries_;
  changed_.notify_all();
}

}  // namespace stretto::python
