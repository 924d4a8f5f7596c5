#include "stretto/gpu/gpu_processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>
#include <thread>

#include "stretto/base/printable.h"
#include "stretto/runtime/cuda/shared_device_memory.h"

namespace stretto {
namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

int local_rank_of_environment(int rank) {
  const char* text = std::getenv("LOCAL_RANK");
  if (text == nullptr) return rank;
  std::string_view all(text);
  int value = -1;
  auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error == std::errc() && end == all.data() + all.size() && value >= 0) return value;
  throw UserError(fmt::format("LOCAL_RANK is '{}', not a number", printable(text, 80)));
}

GpuSeats::GpuSeats(Rank& rank)
    : rank_(rank), seats_(rank.allocate("GPUs of the ranks", DType::kU8, sizeof(Seat))) {}

GpuSeats::~GpuSeats() { rank_.release(seats_); }

const GpuSeats::Seat& GpuSeats::seat(int rank) const { return *seats_.on<Seat>(rank); }

void GpuSeats::agree(const std::function<std::string()>& open) {
  Seat& own = *seats_.on<Seat>(rank_.index());
  auto say = [&](Seat::Outcome outcome, const std::string& text) {
    own.outcome = outcome;
    std::size_t n = std::min(text.size(), own.text.size() - 1);
    std::copy_n(text.data(), n, own.text.data());
    own.text[n] = 0;
  };
  try {
    say(Seat::kOpened, open());
  } catch (const UserError& e) {
    say(Seat::kUserError, e.what());
  } catch (const DeviceError& e) {
    say(Seat::kDeviceError, e.what());
  }
  rank_.barrier();
  for (int r = 0; r < rank_.size(); ++r) {
    const Seat& s = seat(r);
    if (s.outcome == Seat::kOpened) continue;
    std::string text = fmt::format("rank {}: {}", r, s.text.data());
    if (s.outcome == Seat::kUserError) throw UserError(text);
    throw DeviceError(text);
  }
}

void GpuSeats::require_own_devices() const {
  for (int a = 0; a < rank_.size(); ++a) {
    for (int b = a + 1; b < rank_.size(); ++b) {
      std::string_view device = seat(a).text.data();
      if (device != seat(b).text.data()) continue;
      throw UserError(
          fmt::format("ranks {} and {} are both on the GPU at {}; LOCAL_RANK or "
                      "CUDA_VISIBLE_DEVICES tells processes apart",
                      a, b, device));
    }
  }
}

std::vector<std::vector<std::byte>> exchange_bytes(Rank& rank, std::span<const std::byte> own) {
  SymmetricBuffer all = rank.allocate("what ranks tell each other", DType::kU8, own.size());
  std::copy(own.begin(), own.end(), all.on<std::byte>(rank.index()));
  rank.barrier();
  std::vector<std::vector<std::byte>> out;
  for (int r = 0; r < rank.size(); ++r) {
    out.emplace_back(all.on<std::byte>(r), all.on<std::byte>(r) + own.size());
  }
  rank.release(all);
  return out;
}

// Whole pages, so that what the driver locks holds nothing else.
GpuWorld::Processes::Processes(Rank& rank, std::size_t bytes)
    : rank_(rank),
      page_(rank.allocate("abort word of the GPUs", DType::kU8,
                          (bytes + page_bytes() - 1) / page_bytes() * page_bytes())) {}

void GpuWorld::Processes::show_to(const cuda::Device& device) {
  registered_.emplace(device, words(), page_.bytes);
}

GpuWorld::Processes::~Processes() {
  if (watch_ >= 0) rank_.unwatch_deaths(watch_);
  registered_.reset();
  rank_.release(page_);
}

void GpuWorld::Processes::watch(std::function<void()> on_death) {
  watch_ = rank_.watch_deaths([on_death = std::move(on_death)](int) { on_death(); });
}

// A launch that is being waited for often takes microseconds.
void GpuWorld::Processes::await(const cuda::Stream& stream,
                                const std::function<void()>& abort) const {
  constexpr int kSpins = 2000;
  constexpr std::chrono::microseconds kLook{100};
  for (int polls = 0; !stream.idle(); ++polls) {
    if (rank_.aborted()) abort();
    if (polls >= kSpins) std::this_thread::sleep_for(kLook);
  }
}

SymmetricGpuMemory GpuWorld::Processes::allocate(const cuda::Device& device,
                                                 std::size_t bytes) const {
  using Shared = cuda::SharedDeviceMemory;
  std::vector<std::shared_ptr<const Shared>> all(static_cast<std::size_t>(rank_.size()));
  auto own = static_cast<std::size_t>(rank_.index());
  rank_.exchange_memory(
      "memory of the GPUs", bytes,
      [&] {
        all[own] = std::make_shared<const Shared>(device, bytes);
        return all[own]->descriptor();
      },
      [&](int from, Fd memory) {
        all[static_cast<std::size_t>(from)] = std::make_shared<const Shared>(device, memory, bytes);
      });
  SymmetricGpuMemory out;
  for (std::shared_ptr<const Shared>& on_rank : all) out.on.emplace_back(std::move(on_rank));
  return out;
}

void GpuWorld::Processes::meet_on(const cuda::Stream& stream, CUdeviceptr words) {
  auto word = [&](int rank) { return words + 8 * static_cast<CUdeviceptr>(rank); };
  ++num_meetings_;
  stream.write_value(word(rank_.index()), num_meetings_);
  for (int r = 0; r < rank_.size(); ++r) {
    if (r != rank_.index()) {
      stream.wait_value(word(r), num_meetings_, cuda::WaitUntil::kAtLeast);
    }
  }
}

void GpuWorld::Processes::end_meetings(std::byte* words) const {
  constexpr std::uint64_t kPastAll = std::uint64_t{1} << 62;  // comparisons are cyclic
  for (int r = 0; r < rank_.size(); ++r) {
    reinterpret_cast<volatile std::uint64_t*>(words)[r] = kPastAll;
  }
}

}  // namespace stretto
