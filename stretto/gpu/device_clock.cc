#include "stretto/gpu/device_clock.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "stretto/base/errors.h"
#include "stretto/codegen/record_text.h"
#include "stretto/runtime/recorder.h"

namespace stretto {
namespace {

constexpr std::int64_t kNumQuestions = 200;
constexpr std::chrono::nanoseconds kDeviceTimeout = std::chrono::seconds(2);
constexpr std::chrono::nanoseconds kHostTimeout = std::chrono::seconds(5);  // first launch included

}  // namespace

std::int64_t host_time(std::int64_t device_ns, const ClockReading& first,
                       const ClockReading& last) {
  std::int64_t passed = last.device_ns - first.device_ns;
  std::int64_t gained = last.host_ns - first.host_ns - passed;  // by the host's clock
  std::int64_t since = std::clamp<std::int64_t>(device_ns - first.device_ns, 0, passed);
  double part = passed > 0 ? static_cast<double>(since) / static_cast<double>(passed) : 0;
  return device_ns + (first.host_ns - first.device_ns) +
         std::llround(part * static_cast<double>(gained));
}

DeviceClock::DeviceClock(const cuda::Device& device) {
  cuda::KernelImage image = cuda::compile_cuda(clock_kernel_text(), "clock.cu");
  cuda::Module module(device, image.cubin, "clock");
  kernel_ = std::make_unique<cuda::Kernel>(module, "stretto_clock");
  words_ =
      std::make_unique<cuda::HostMappedMemory>(device, (kNumQuestions + 1) * sizeof(std::uint64_t));
}

ClockReading DeviceClock::read(const cuda::Stream& stream) const {
  auto* words = static_cast<std::uint64_t*>(words_->host());
  std::memset(words, 0, words_->bytes());
  CUdeviceptr at = words_->address();
  std::int64_t questions = kNumQuestions;
  auto timeout_ns = static_cast<std::uint64_t>(kDeviceTimeout.count());
  void* params[] = {&at, &questions, &timeout_ns};
  kernel_->launch(stream, {}, params);
  std::int64_t deadline = Recorder::now_ns() + kHostTimeout.count();
  ClockReading best{.error_ns = std::numeric_limits<std::int64_t>::max()};
  for (std::int64_t i = 1; i <= kNumQuestions; ++i) {
    std::int64_t begin = Recorder::now_ns(), end = begin;
    std::atomic_ref(words[0]).store(static_cast<std::uint64_t>(i), std::memory_order_release);
    std::uint64_t answer = 0;
    do {
      answer = std::atomic_ref(words[i]).load(std::memory_order_acquire);
      end = Recorder::now_ns();
      if (end > deadline) throw DeviceError("a GPU does not answer when asked for its timer");
    } while (answer == 0);
    std::int64_t error = (end - begin + 1) / 2;
    if (error >= best.error_ns) continue;
    best = {begin + error, static_cast<std::int64_t>(answer), error};
  }
  stream.synchronize();
  return best;
}

}  // namespace stretto
