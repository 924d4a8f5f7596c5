// Loads and stores of global memory with an order: the part of device_code.h that other ranks see.
#pragma once

#include <cstdint>

#include "stretto/simulator/instructions.h"

namespace sim = stretto::simulator;

namespace ptx {

template <class T>
inline T sim_load(const T* p) {
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
template <class T>
inline void sim_store(T* p, T v) {
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
template <class T>
inline void ld_acquire_sys_global_u64(T& out, const T* p) {
  sim::poll();
  out = sim_load(p);
}
template <class T>
inline void ld_relaxed_sys_global_u64(T& out, const T* p) {
  sim::poll();
  out = sim_load(p);
}
template <class V, class T>
inline void ld_relaxed_sys_global_v2_u64(const V& out, const T* p) {
  sim::poll();
  *out[0] = sim_load(p);
  *out[1] = sim_load(p + 1);
}
template <class T>
inline void red_release_sys_global_add_u64(T* p, T n) {
  sim::yield();
  __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST);
}
template <class T>
inline void atom_relaxed_gpu_global_add_u64(T& old, T* p, T n) {
  sim::yield();
  old = __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST);
}
template <class T>
inline void red_relaxed_gpu_global_add_u64(T* p, T n) {
  sim::yield();
  __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST);
}
template <class T>
inline void st_relaxed_sys_global_u64(T* p, T v) {
  sim::yield();
  sim_store(p, v);
}
template <class T, class V>
inline void st_relaxed_sys_global_v2_u64(T* p, const V& v) {
  sim::yield();
  sim_store(p, T(*v[0]));
  sim::yield();  // each word arrives whole, not both together
  sim_store(p + 1, T(*v[1]));
}
// Lines, by all threads of a warp. Their last words are written after all others and read before
// them: ranks may be processes of their own.
struct SimLinePart {
  void* at;
  std::uint64_t words[2];
  std::uint64_t* word(int i) const { return static_cast<std::uint64_t*>(at) + i; }
  bool ends_line() const { return reinterpret_cast<std::uintptr_t>(at) / 16 % 8 == 7; }
};
template <class F>
inline void sim_line_parts(void* const lanes[32], bool ends_first, F visit) {
  for (bool ends : {ends_first, !ends_first}) {
    for (int i = 0; i < 32; ++i) {
      auto& part = *static_cast<SimLinePart*>(lanes[i]);
      if (part.ends_line() == ends) visit(part);
    }
  }
}
template <class T, class V>
inline void st_volatile_global_v2_u64(T* p, const V& v) {
  SimLinePart mine{p, {std::uint64_t(*v[0]), std::uint64_t(*v[1])}};
  sim::warp_together(sim::WarpOp::kStoreLine, &mine, [](void* const lanes[32]) {
    sim_line_parts(lanes, false, [](const SimLinePart& part) {
      sim_store(part.word(0), part.words[0]);
      sim_store(part.word(1), part.words[1]);
    });
  });
  sim::yield();
}
template <class V, class T>
inline void ld_volatile_global_v2_u64(const V& out, const T* p) {
  sim::poll();
  SimLinePart mine{const_cast<T*>(p), {}};
  sim::warp_together(sim::WarpOp::kLoadLine, &mine, [](void* const lanes[32]) {
    sim_line_parts(lanes, true, [](SimLinePart& part) {
      part.words[1] = sim_load(part.word(1));
      part.words[0] = sim_load(part.word(0));
    });
  });
  *out[0] = mine.words[0];
  *out[1] = mine.words[1];
}

}  // namespace ptx
