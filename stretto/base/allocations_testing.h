// Counts what a thread allocates. For one file of a test program: it replaces operator new.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace stretto::counted_allocations {

inline thread_local bool counting = false;
inline thread_local std::size_t allocations = 0;

}  // namespace stretto::counted_allocations

// Not inlined: compilers pair what is.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (stretto::counted_allocations::counting) ++stretto::counted_allocations::allocations;
  void* at = std::malloc(bytes == 0 ? 1 : bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace stretto {

// By this thread, while work() runs.
template <typename Work>
std::size_t count_allocations(const Work& work) {
  counted_allocations::allocations = 0;
  counted_allocations::counting = true;
  work();
  counted_allocations::counting = false;
  return counted_allocations::allocations;
}

}  // namespace stretto
