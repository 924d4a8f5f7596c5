// Runtime choice of the instruction set for loops that the compiler vectorises: the same body is
// compiled for plain x86-64 and for AVX2, and the machine decides on the first call. Internal to
// the kernels.
//
// A body is a callable marked STRETTO_INLINED all the way down: only code inlined into
// detail::run_avx2 is compiled for AVX2. No FMA here, so that both give the same bits. Bodies
// travel by value: a loop that stores bytes could otherwise change what the body captured.
#pragma once

#define STRETTO_INLINED __attribute__((always_inline))

// Tells the vectoriser that no iteration reads what another wrote. An output may still be the very
// same array as an input.
#if defined(__clang__)
#define STRETTO_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define STRETTO_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace stretto::kernels {

// Each has those before it: what every x86-64 has; AVX2, FMA and F16C; AVX-512; and its products of
// pairs of bf16.
enum class Instructions { kPortable, kAvx2, kAvx512, kPairs };

// The processor has them and no InstructionScope of this thread forbids them.
bool use_avx2();
bool use_avx512();
bool use_pairs();

// While it lives, the kernels that this thread calls use at most these. For tests.
class InstructionScope {
 public:
  explicit InstructionScope(Instructions most);
  ~InstructionScope();
  InstructionScope(const InstructionScope&) = delete;
  InstructionScope& operator=(const InstructionScope&) = delete;

 private:
  Instructions outer_;
};

namespace detail {
#if defined(__x86_64__)
template <typename Body>
__attribute__((target("avx2"))) void run_avx2(Body body) {
  body();
}
#endif
template <typename Body>
void run_portable(Body body) {
  body();
}
}  // namespace detail

template <typename Body>
void run_vectorised(Body body) {
#if defined(__x86_64__)
  if (use_avx2()) return detail::run_avx2(body);
#endif
  detail::run_portable(body);
}

}  // namespace stretto::kernels
