#include "session.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "gpu_executable.h"

namespace stretto::python {

Session::Session(std::unique_ptr<World> world)
    : world_(std::move(world)), memories_(static_cast<std::size_t>(world_->size())) {}

Rank& Session::rank(int index) {
  std::lock_guard lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  return world_->rank(index);
}

void Session::open_gpu(const GpuSide::Options& options) {
  std::lock_guard lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  if (!gpu_) gpu_ = std::make_unique<GpuSide>(*world_, options);
  if (gpu_->ordinal() == options.device) return;
  throw UserError(fmt::format("rank {}: arrays on GPU {}, and this rank is on GPU {}", local_rank(),
                              options.device, gpu_->ordinal()));
}

GpuSide& Session::gpu() {
  std::lock_guard lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  STRETTO_CHECK(gpu_ != nullptr, "no GPU has been opened");
  return *gpu_;
}

void Session::add_executable(GpuExecutable& executable) {
  std::lock_guard lock(mutex_);
  executables_.push_back(&executable);
}

void Session::remove_executable(GpuExecutable& executable) noexcept {
  std::lock_guard lock(mutex_);
  std::erase(executables_, &executable);
}

void Session::retire(SymmetricGpuMemory memory) noexcept {
  std::lock_guard lock(mutex_);
  if (gpu_) gpu_->retire(std::move(memory));
}

void Session::record(bool on) {
  std::lock_guard lock(mutex_);
  if (finalized_) throw UserError("stretto: used after finalize()");
  world_->recorder().set_enabled(on);
  if (!gpu_) return;
  gpu_->synchronize();
  for (GpuExecutable* executable : executables_) executable->record(on, world_->recorder());
}

void Session::write_trace(const std::string& path, Session* alone) {
  std::vector<Recorder::Group> parts = {{&world_->recorder(), ""}};
  if (alone != nullptr) {
    parts.push_back({&alone->world().recorder(), fmt::format("alone on rank {},", local_rank())});
  }
  Recorder::write_trace(path, parts);
  for (Session* session : {this, alone}) {
    if (session != nullptr) session->world().recorder().clear();
  }
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

void Session::add_memory(int rank, const SymmetricMemory& memory) {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank)].emplace(memory.data() + memory.bytes(), &memory);
  if (!memory.is_on_gpu()) ++num_memories_;
}

void Session::remove_memory(Rank& rank, const SymmetricMemory& memory) noexcept {
  std::lock_guard lock(mutex_);
  memories_[static_cast<std::size_t>(rank.index())].erase(memory.data() + memory.bytes());
  if (memory.is_on_gpu()) return;
  --num_memories_;
  if (left_) return;
  try {
    rank.release(memory.buffer());
    if (finalized_ && num_memories_ == 0) leave();
  } catch (const std::exception&) {  // a forked child: the memory is its parent's
  }
}

void Session::finalize(bool at_once) {
  std::lock_guard lock(mutex_);
  finalized_ = true;
  for (GpuExecutable* executable : executables_) executable->close();
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
  if (finalized_) throw UserError("stretto: used after finalize()");
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
  for (GpuExecutable* executable : executables_) executable->recover();
  ++num_recoveries_;
  changed_.notify_all();
}

}  // namespace stretto::python
