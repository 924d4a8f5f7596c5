// How often which function of the driver is called: what a launch costs its host, in a figure that
// does not depend on the machine. Works with the driver of GPUs and with that of simulated ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "stretto/runtime/cuda/driver.h"

namespace stretto::cuda {

// One at a time in a process, with no other thread calling the driver as it comes and goes.
class DriverCalls {
 public:
  enum class Mode {
    kCount,    // and call
    kSwallow,  // what enqueues work succeeds at once and enqueues nothing
  };
  explicit DriverCalls(Mode mode = Mode::kCount) : table_(driver_table_of_tests()), kept_(table_) {
#define STRETTO_COUNT_CALLS(member, symbol, parameters) \
  Counter<&Driver::member>::install(table_, false);
    STRETTO_CUDA_FUNCTIONS(STRETTO_COUNT_CALLS)
#undef STRETTO_COUNT_CALLS
    if (mode == Mode::kCount) return;
    swallow<&Driver::launch_kernel_ex, &Driver::graph_launch, &Driver::memcpy_dtod_async,
            &Driver::memcpy_2d_async, &Driver::memcpy_peer_async, &Driver::memset_d8_async,
            &Driver::event_record, &Driver::stream_wait_event, &Driver::stream_wait_value64,
            &Driver::stream_write_value64>();
  }
  ~DriverCalls() { table_ = kept_; }
  DriverCalls(const DriverCalls&) = delete;
  DriverCalls& operator=(const DriverCalls&) = delete;

  // Since the last reset, by symbol; those that were not called are left out.
  std::map<std::string, std::int64_t> counts() const {
    std::map<std::string, std::int64_t> out;
#define STRETTO_READ_CALLS(member, symbol, parameters) \
  if (std::int64_t n = Counter<&Driver::member>::calls; n > 0) out[#symbol] = n;
    STRETTO_CUDA_FUNCTIONS(STRETTO_READ_CALLS)
#undef STRETTO_READ_CALLS
    return out;
  }
  void reset() {
#define STRETTO_RESET_CALLS(member, symbol, parameters) Counter<& Driver::member>::calls = 0;
    STRETTO_CUDA_FUNCTIONS(STRETTO_RESET_CALLS)
#undef STRETTO_RESET_CALLS
  }

 private:
  template <auto Member>
  struct Counter;
  template <typename... Parameters, CUresult (*Driver::*Member)(Parameters...)>
  struct Counter<Member> {
    static inline CUresult (*real)(Parameters...) = nullptr;
    static inline std::atomic<std::int64_t> calls = 0;
    static inline bool swallowed = false;
    static CUresult call(Parameters... p) {
      calls.fetch_add(1, std::memory_order_relaxed);
      return swallowed ? CUDA_SUCCESS : real(p...);
    }
    static void install(Driver& table, bool swallows) {
      if (table.*Member != &call) real = table.*Member;
      table.*Member = &call;
      calls = 0;
      swallowed = swallows;
    }
  };
  template <auto... Members>
  void swallow() {
    (Counter<Members>::install(table_, true), ...);
  }

  Driver& table_;
  Driver kept_;
};

}  // namespace stretto::cuda
