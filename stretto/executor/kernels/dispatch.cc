#include "stretto/executor/kernels/dispatch.h"

#include "stretto/executor/kernels/dot_pairs.h"

namespace stretto::kernels {
namespace {

Instructions detected() {
#if defined(__x86_64__)
  // No processor has AVX2 and lacks F16C, which not every compiler lets us ask for.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return Instructions::kPortable;
  }
  if (!__builtin_cpu_supports("avx512f")) return Instructions::kAvx2;
  return pairs_are_in_order() ? Instructions::kPairs : Instructions::kAvx512;
#else
  return Instructions::kPortable;
#endif
}

thread_local Instructions most_allowed = Instructions::kPairs;

bool uses(Instructions wanted) {
  static const Instructions has = detected();
  return has >= wanted && most_allowed >= wanted;
}

}  // namespace

bool use_avx2() { return uses(Instructions::kAvx2); }
bool use_avx512() { return uses(Instructions::kAvx512); }
bool use_pairs() { return uses(Instructions::kPairs); }

InstructionScope::InstructionScope(Instructions most) : outer_(most_allowed) {
  most_allowed = most;
}
InstructionScope::~InstructionScope() { most_allowed = outer_; }

}  // namespace stretto::kernels
