#include "gpu_side.h"

#include <fmt/format.h>

#include <utility>

#include "stretto/base/errors.h"

namespace stretto::python {
namespace {

constexpr std::size_t kCallsKept = 256;
constexpr int kNumberBits = 24;  // of calls: the numbers of two that are compared are near

// Never 0, which says that there was no call.
std::uint64_t word_of(std::uint64_t number, std::uint64_t content, bool agrees) {
  std::uint64_t hash = content >> kNumberBits & ~std::uint64_t{1};
  return (number + 1) << (64 - kNumberBits) | hash | (agrees ? 1 : 0);
}
bool agrees(std::uint64_t word) { return (word & 1) != 0; }
std::uint64_t number_of(std::uint64_t word) { return word >> (64 - kNumberBits); }

}  // namespace

GpuSide::GpuSide(World& world, const Options& options) {
  if (world.local_ranks().size() > 1) {
    throw UserError("stretto: GPU arrays need one process per rank");
  }
  if (world.size() == 1) {
    own_ = std::make_unique<World>(ProcessWorldOptions{.timeout = world.timeout()});
    host_ = &own_->local_rank();
  } else {
    host_ = &world.local_rank();
  }
  gpus_ =
      std::make_unique<GpuWorld>(*host_, GpuProcessOptions{.device = options.device,
                                                           .share_devices = options.share_devices,
                                                           .ledger = options.ledger});
  calls_ = host_->allocate("calls of the ranks", DType::kI64, kCallsKept);
}

GpuSide::~GpuSide() {
  try {
    synchronize();
    host_->release(calls_);
  } catch (const Error&) {  // a fault has been told elsewhere
  }
}

void GpuSide::synchronize() const {
  if (host_->aborted()) gpus_->abort();
  device().synchronize();
}

void GpuSide::free_retired() {
  std::vector<SymmetricGpuMemory> unused;
  {
    std::lock_guard lock(retiring_);
    unused.swap(retired_);
  }
  if (!unused.empty()) synchronize();
}

SymmetricGpuMemory GpuSide::allocate(const std::string& name, std::size_t bytes) {
  free_retired();
  announce(name, bytes, Then::kAgree);
  agree(name, bytes);
  SymmetricGpuMemory memory = gpus_->allocate(bytes);
  auto own = static_cast<std::size_t>(host_->index());
  gpus_->stream(host_->index()).fill_bytes(memory.on[own].address(), 0, bytes);
  gpus_->meet();
  return memory;
}

void GpuSide::retire(SymmetricGpuMemory memory) {
  std::lock_guard lock(retiring_);
  retired_.push_back(std::move(memory));
}

const cuda::Stream& GpuSide::stream(std::uintptr_t handle) {
  auto wanted = reinterpret_cast<cuda::CUstream>(handle);
  if (!stream_ || stream_->handle() != wanted) {
    stream_.emplace(cuda::Stream::borrow(device(), wanted));
  }
  return *stream_;
}

void GpuSide::agree(const std::string& call, std::uint64_t content) {
  if (host_->size() > 1) host_->agree(call, content);
}

void GpuSide::announce(const std::string& call, std::uint64_t content, Then then) {
  if (host_->size() == 1) return;
  std::uint64_t number = num_calls_++, mine = word_of(number, content, then == Then::kAgree);
  std::size_t place = number % kCallsKept;
  calls_.on<Call>(host_->index())[place].store(mine);  // before the others' are read: one sees both
  for (int r = 0; r < host_->size(); ++r) {
    std::uint64_t theirs = calls_.on<Call>(r)[place].load();
    if (theirs == mine || number_of(theirs) != number_of(mine)) continue;
    if (agrees(theirs) && agrees(mine)) continue;
    gpus_->abort();
    host_->raise_fault({.program = call,
                        .role = "call",
                        .rank = host_->index(),
                        .waited_for = r,
                        .reason = fmt::format("rank {} makes another call in its place", r)});
  }
}

void GpuSide::recover() {
  if (own_) own_->recover();
  synchronize();
  num_calls_ = 0;
  for (std::size_t i = 0; i < kCallsKept; ++i) calls_.on<Call>(host_->index())[i].store(0);
  gpus_->clear_fault();
}

}  // namespace stretto::python
