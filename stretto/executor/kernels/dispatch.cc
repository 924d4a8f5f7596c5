#include "stretto/executor/kernels/dispatch.h"

namespace stretto::kernels {
namespace {

bool detect_avx2() {
#if defined(__x86_64__)
  // No processor has AVX2 and lacks F16C, which not every compiler lets us ask for.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

thread_local bool portable_only = false;

}  // namespace

bool use_avx2() {
  static const bool has = detect_avx2();
  return has && !portable_only;
}

PortableScope::PortableScope() : outer_(portable_only) { portable_only = true; }
PortableScope::~PortableScope() { portable_only = outer_; }

}  // namespace stretto::kernels
