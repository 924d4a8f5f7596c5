#include "stretto/runtime/cuda/driver_phases.h"

#include <mutex>

#include "stretto/base/host_phases.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::cuda {
namespace {

template <auto Member>
struct Phased;
template <typename... Parameters, CUresult (*Driver::*Member)(Parameters...)>
struct Phased<Member> {
  static inline CUresult (*real)(Parameters...) = nullptr;
  static inline const char* symbol = nullptr;
  static CUresult call(Parameters... p) {
    HostPhase phase(symbol);
    return real(p...);
  }
  static void install(Driver& table, const char* name) {
    real = table.*Member;
    symbol = name;
    table.*Member = &call;
  }
};

}  // namespace

void phase_driver_calls() {
  static std::once_flag once;
  std::call_once(once, [] {
    Driver& table = driver_table_of_tests();
#define STRETTO_PHASE_CALLS(member, symbol, parameters) \
  Phased<&Driver::member>::install(table, #symbol);
    STRETTO_CUDA_FUNCTIONS(STRETTO_PHASE_CALLS)
#undef STRETTO_PHASE_CALLS
  });
}

}  // namespace stretto::cuda
