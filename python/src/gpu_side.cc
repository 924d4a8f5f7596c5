#include "gpu_side.h"

#include <fmt/format.h>

#include <utility>

#include "stretto/base/errors.h"

namespace stretto::python {
namespace {

constexpr std::size_t kCallsKept = 256;
// What a rank says of a call: how many launches and how many collective calls of its host came
// before it, near those of the word that it is compared with; a hash; and whether the hosts meet in
// it, as they do in first calls, or it is launched. Ranks that make the same calls have the same
// numbers; whoever refuses one has come to it on its host, too.
constexpr int kLaunchBits = 20, kHostBits = 12, kHashBits = 31;
static_assert(kLaunchBits + kHostBits + kHashBits + 1 == 64);

struct CallCounts {
  std::uint64_t num_launches, num_host_calls;
};

constexpr std::uint64_t low(std::uint64_t x, int bits) {
  return x & ((std::uint64_t{1} << bits) - 1);
}

// Never 0 within the first launches, which says that there was no call.
std::uint64_t word_of(CallCounts calls, std::uint64_t content, bool agrees) {
  std::uint64_t numbers =
      low(calls.num_launches + 1, kLaunchBits) << kHostBits | low(calls.num_host_calls, kHostBits);
  return numbers << (kHashBits + 1) | content >> (64 - kHashBits) << 1 | (agrees ? 1 : 0);
}
bool agrees(std::uint64_t word) { return (word & 1) != 0; }

// By how much the numbers of that many bits, from `shift` on, are ahead of those of `mine`.
std::int64_t ahead(std::uint64_t theirs, std::uint64_t mine, int shift, int bits) {
  std::uint64_t by = low((theirs >> shift) - (mine >> shift), bits);
  return static_cast<std::int64_t>(by << (64 - bits)) >> (64 - bits);
}

// Whether one of the two ranks makes a call for which the other has made, or refused, another.
// Where hosts are still to meet they are told there.
bool go_apart(std::uint64_t mine, std::uint64_t theirs) {
  if (theirs == mine || theirs == 0) return false;
  std::int64_t launches = ahead(theirs, mine, kHostBits + kHashBits + 1, kLaunchBits);
  if (launches != 0)
    return launches > 0 && agrees(mine);  // they have launched what this one does not
  std::int64_t host_calls = ahead(theirs, mine, kHashBits + 1, kHostBits);
  if (host_calls == 0) return !agrees(mine) || !agrees(theirs);
  return !agrees(host_calls < 0 ? theirs : mine);
}

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
  CallCounts calls{num_launches_, host_->num_calls()};
  compare(call, word_of(calls, content, then == Then::kAgree), calls.num_host_calls);
  if (then == Then::kLaunch) ++num_launches_;
}

void GpuSide::refuse(const std::string& call, std::uint64_t num_host_calls) noexcept {
  try {
    compare(call, word_of({num_launches_, num_host_calls}, 0, true), num_host_calls);
  } catch (const Error&) {
  }
}

void GpuSide::compare(const std::string& call, std::uint64_t word, std::uint64_t num_host_calls) {
  std::size_t place = num_launches_ % kCallsKept;
  calls_.on<Call>(host_->index())[place].store(word);  // before the others' are read: one sees both
  for (int r = 0; r < host_->size(); ++r) {
    if (!go_apart(word, calls_.on<Call>(r)[place].load())) continue;
    std::string reason = host_->refusal(num_host_calls);
    if (reason.empty()) reason = fmt::format("rank {} makes another call in its place", r);
    // The reason first: whoever sees the GPUs' word looks for it.
    try {
      host_->raise_fault({.program = call,
                          .role = "call",
                          .rank = host_->index(),
                          .waited_for = r,
                          .reason = reason});
    } catch (const Fault&) {
      gpus_->abort();
      throw;
    }
  }
}

void GpuSide::recover() {
  if (own_) own_->recover();
  synchronize();
  num_launches_ = 0;
  for (std::size_t i = 0; i < kCallsKept; ++i) calls_.on<Call>(host_->index())[i].store(0);
  gpus_->clear_fault();
}

}  // namespace stretto::python
