// What stands before a kernel's text when it is compiled for the host: the names that CUDA C++ has
// built in, and PTX's instructions under their names with dots as underscores.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "stretto/simulator/device_memory.h"
#include "stretto/simulator/instructions.h"

#define __global__
#define __device__
#define __constant__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

#define threadIdx (sim::indices->thread)
#define blockIdx (sim::indices->block)
#define blockDim (sim::indices->block_dim)
#define gridDim (sim::indices->grid_dim)

using std::uint32_t;
using std::uint64_t;
using dim3 = sim::Dim3;

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

template <class To, class From>
inline To sim_bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(&out, &v, sizeof(To));
  return out;
}
inline float __uint_as_float(unsigned v) { return sim_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return sim_bits<unsigned>(v); }
inline float __int_as_float(int v) { return sim_bits<float>(v); }
inline int __float_as_int(float v) { return sim_bits<int>(v); }
inline int __float2int_rz(float v) {  // saturates; of what is no number 0
  if (v >= 2147483648.f) return 0x7fffffff;
  if (v < -2147483648.f) return -0x7fffffff - 1;
  return v == v ? static_cast<int>(v) : 0;
}
inline float __fdividef(float a, float b) {
  return std::fabs(b) > 8.507059e37f ? a * 0.f : a / b;  // 2^126
}
inline float rsqrtf(float v) { return 1.f / std::sqrt(v); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return T(a) < T(b) ? T(b) : T(a);
}

inline uint32_t __cvta_generic_to_shared(const void* p) { return sim::shared_address(p); }
inline void __syncthreads() { sim::block_barrier(); }
inline int __syncthreads_or(int v) {
  static const char key = 0;
  auto* any = static_cast<int*>(sim::static_shared(&key, sizeof(int)));
  sim::block_barrier();
  *any = 0;
  sim::block_barrier();
  if (v != 0) *any = 1;
  sim::block_barrier();
  return *any;
}
inline void __syncwarp(unsigned = ~0u) { sim::warp_together(sim::WarpOp::kMeet, nullptr, nullptr); }
[[noreturn]] inline void __trap() { __builtin_trap(); }

// Atomics: one thread runs at a time.
template <class T>
inline T atomicAdd(T* p, T v) {
  sim::yield();
  T old = *p;
  *p = old + v;
  return old;
}
template <class T>
inline T atomicOr(T* p, T v) {
  sim::yield();
  T old = *p;
  *p = old | v;
  return old;
}
template <class T>
inline T atomicMin(T* p, T v) {
  sim::yield();
  T old = *p;
  *p = old < v ? old : v;
  return old;
}
template <class T>
inline T atomicExch_system(T* p, T v) {
  sim::yield();
  return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);
}

struct SimShuffle {
  unsigned char value[8];
  unsigned char out[8];
  int from;
};
template <class T>
inline T sim_shuffle(T v, int from) {
  static_assert(sizeof(T) <= 8);
  SimShuffle mine{{}, {}, from};
  std::memcpy(mine.value, &v, sizeof(T));
  sim::warp_together(sim::WarpOp::kShuffle, &mine, [](void* const lanes[32]) {
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) continue;
      auto& lane = *static_cast<SimShuffle*>(lanes[i]);
      void* from = lanes[lane.from];
      if (from != nullptr) std::memcpy(lane.out, static_cast<SimShuffle*>(from)->value, 8);
    }
  });
  T out;
  std::memcpy(&out, mine.out, sizeof(T));
  return out;
}
template <class T>
inline T __shfl_sync(unsigned, T v, int from) {
  return sim_shuffle(v, from & 31);
}
template <class T>
inline T __shfl_xor_sync(unsigned, T v, int mask) {
  return sim_shuffle(v, int(threadIdx.x & 31) ^ mask);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
  for (int lanes = 16; lanes > 0; lanes /= 2) v += __shfl_xor_sync(mask, v, lanes);
  return v;
}
inline bool __any_sync(unsigned, bool v) {
  bool mine = v;
  sim::warp_together(sim::WarpOp::kAny, &mine, [](void* const lanes[32]) {
    bool any = false;
    for (int i = 0; i < 32; ++i) any |= lanes[i] != nullptr && *static_cast<bool*>(lanes[i]);
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) *static_cast<bool*>(lanes[i]) = any;
    }
  });
  return mine;
}

namespace ptx {

// A list of operands in braces.
template <class... T>
inline auto sim_list(T&... v) {
  return std::array<std::common_type_t<T...>*, sizeof...(T)>{&v...};
}
template <class... T>
inline auto sim_list(const T&... v) {
  return std::array<const std::common_type_t<T...>*, sizeof...(T)>{&v...};
}

// What follows is named after the instruction.

#define SIM_COPY_ASYNC(NAME)                                                       \
  inline void NAME(uint32_t to, const void* from, uint32_t bytes, uint32_t read) { \
    sim::copy_async(to, from, bytes, read);                                        \
  }                                                                                \
  inline void NAME(uint32_t to, const void* from, uint32_t bytes, bool ignored) {  \
    sim::copy_async(to, from, bytes, ignored ? 0 : bytes);                         \
  }                                                                                \
  inline void NAME(uint32_t to, const void* from, uint32_t bytes, int read) {      \
    sim::copy_async(to, from, bytes, uint32_t(read));                              \
  }
SIM_COPY_ASYNC(cp_async_cg_shared_global)
SIM_COPY_ASYNC(cp_async_ca_shared_global)
#undef SIM_COPY_ASYNC
inline void cp_async_mbarrier_arrive_noinc_shared__cta_b64(uint32_t bar) {
  sim::arrive_after_copies(bar);
}

inline uint64_t sim_clock64() { return sim::timer_ns(); }
inline uint64_t sim_globaltimer() { return sim::timer_ns(); }
inline uint32_t sim_cluster_ctarank() { return sim::block_of_cluster(); }
inline void mov_u64(auto& to, uint64_t from) { to = from; }
inline void mov_u32(auto& to, uint32_t from) { to = from; }

inline void ex2_approx_ftz_f32(float& out, float v) { out = std::exp2(v); }
inline void rcp_approx_ftz_f32(float& out, float v) { out = 1.f / v; }

template <class V>
inline void sim_store_words(void* p, const V& v) {
  for (std::size_t i = 0; i < v.size(); ++i) static_cast<unsigned*>(p)[i] = unsigned(*v[i]);
}
template <class V>
inline void st_global_v4_b32(void* p, const V& v) {
  sim_store_words(p, v);
}
template <class V>
inline void st_global_v2_b32(void* p, const V& v) {
  sim_store_words(p, v);
}
inline void fence_acq_rel_sys() { sim::yield(); }
inline void fence_acq_rel_gpu() { sim::yield(); }
inline void fence_acq_rel_cta() {}
inline void fence_acq_rel_cluster() {}
inline void fence_proxy_async_shared__cta() {}
inline void fence_proxy_async_global() {}
inline void fence_mbarrier_init_release_cluster() {}
inline void nanosleep_u32(uint32_t) { sim::poll(); }

inline void mbarrier_init_shared__cta_b64(uint32_t bar, uint32_t arrivals) {
  sim::mbarrier_init(bar, arrivals);
}
struct SimSink {};
inline void mbarrier_arrive_release_cta_shared__cta_b64(SimSink, uint32_t bar,
                                                        uint32_t arrivals = 1) {
  for (uint32_t i = 0; i < arrivals; ++i) sim::mbarrier_arrive(bar);
}
inline void mbarrier_arrive_relaxed_cluster_shared__cluster_b64(SimSink, uint32_t bar) {
  sim::mbarrier_arrive(bar);
}
inline void mbarrier_arrive_expect_tx_release_cta_shared__cta_b64(SimSink, uint32_t bar,
                                                                  uint32_t bytes) {
  sim::mbarrier_expect(bar, bytes);
  sim::mbarrier_arrive(bar);
}
inline void mapa_shared__cluster_u32(uint32_t& out, uint32_t address, uint32_t block) {
  out = sim::address_in_cluster(address, block);
}
inline void mbarrier_try_wait_parity_acquire_cta_shared__cta_b64(bool& done, uint32_t bar,
                                                                 uint32_t parity) {
  sim::mbarrier_wait(bar, parity);
  done = true;
}
inline void mbarrier_try_wait_parity_relaxed_cluster_shared__cta_b64(bool& done, uint32_t bar,
                                                                     uint32_t parity) {
  sim::mbarrier_wait(bar, parity);
  done = true;
}
inline void selp_b32(uint32_t& out, uint32_t a, uint32_t b, bool p) { out = p ? a : b; }
inline void setp_ne_u32(bool& p, uint32_t a, uint32_t b) { p = a != b; }
inline void setp_ne_b32(bool& p, uint32_t a, uint32_t b) { p = a != b; }
inline void setp_eq_u32(bool& p, uint32_t a, uint32_t b) { p = a == b; }
inline void bar_sync(uint32_t id, uint32_t threads) { sim::named_barrier(id, threads, true); }
inline void bar_arrive(uint32_t id, uint32_t threads) { sim::named_barrier(id, threads, false); }
inline unsigned char* sim_shared_at(uint32_t address) {
  return sim::indices->shared + (address - sim::kSharedBase);
}
inline void st_release_cta_shared__cta_u32(uint32_t address, uint32_t v) {
  sim::yield();
  std::memcpy(sim_shared_at(address), &v, 4);
}
inline void ld_acquire_cta_shared__cta_u32(uint32_t& out, uint32_t address) {
  sim::poll();
  std::memcpy(&out, sim_shared_at(address), 4);
}
inline void ld_volatile_shared_u32(uint32_t& out, uint32_t address) {
  ld_acquire_cta_shared__cta_u32(out, address);
}
template <class V>
inline void ld_volatile_shared_v2_f32(const V& out, uint32_t address) {
  for (int i = 0; i < 2; ++i) std::memcpy(out[i], sim_shared_at(address) + 4 * i, 4);
}
inline void st_shared_u32(uint32_t address, uint32_t v) {
  std::memcpy(sim_shared_at(address), &v, 4);
}
template <class V>
inline void st_shared_v4_u32(uint32_t address, const V& v) {
  sim_store_words(sim_shared_at(address), v);
}
inline void barrier_cluster_arrive_release_aligned() { sim::cluster_arrive(); }
inline void barrier_cluster_wait_acquire_aligned() { sim::cluster_wait(); }
inline void setmaxnreg_inc_sync_aligned_u32(uint32_t n) { sim::set_register_budget(n, true); }
inline void setmaxnreg_dec_sync_aligned_u32(uint32_t n) { sim::set_register_budget(n, false); }
inline void griddepcontrol_launch_dependents() { sim::let_next_launch_start(); }
inline void griddepcontrol_wait() { sim::wait_for_previous_launch(); }
inline void elect_sync(uint32_t& lane, bool& elected, uint32_t) {
  int mine = int(threadIdx.x & 31);
  sim::warp_together(sim::WarpOp::kElect, &mine, [](void* const lanes[32]) {
    int first = 32;
    for (int i = 31; i >= 0; --i) {
      if (lanes[i] != nullptr) first = i;
    }
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] != nullptr) *static_cast<int*>(lanes[i]) = first;
    }
  });
  lane = uint32_t(mine);
  elected = mine == int(threadIdx.x & 31);
}

inline void prefetch_tensormap(const void*) {}
template <class C>
inline void cp_async_bulk_tensor_3d_shared__cluster_global_mbarrier__complete_tx__bytes(
    uint32_t to, const void* map, const C& at, uint32_t bar) {
  sim::tma_load(to, map, bar, {*at[0], *at[1], *at[2]}, 0);
}
template <class C>
inline void
cp_async_bulk_tensor_3d_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster(
    uint32_t to, const void* map, const C& at, uint32_t bar, unsigned short blocks) {
  sim::tma_load(to, map, bar, {*at[0], *at[1], *at[2]}, blocks);
}
template <class C>
inline void cp_async_bulk_tensor_3d_global_shared__cta_bulk_group(const void* map, const C& at,
                                                                  uint32_t from) {
  sim::tma_store(map, from, {*at[0], *at[1], *at[2]});
}
inline void cp_async_bulk_commit_group() { sim::tma_commit(); }
inline void cp_async_bulk_wait_group_read(uint32_t pending) { sim::tma_wait(pending, false); }
inline void cp_async_bulk_wait_group(uint32_t pending) { sim::tma_wait(pending, true); }

// Rounding to nearest even.
inline unsigned short sim_bf16(float v) {
  unsigned bits = __float_as_uint(v);
  if (v != v) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned short sim_f16(float v) { return sim_bits<unsigned short>(_Float16(v)); }
inline float sim_from_f16(unsigned short v) { return float(sim_bits<_Float16>(v)); }
inline unsigned char sim_e4m3(float v) {
  unsigned char sign = std::signbit(v) ? 0x80 : 0;
  float a = std::fabs(v);
  if (a != a) return 0x7f;
  if (a > 448.f) return sign | 0x7e;
  int exponent = a < 0.015625f ? -6 : std::ilogb(a);
  int mantissa = int(std::nearbyint(std::ldexp(a, 3 - exponent)));  // 8 to 16, below for subnormals
  if (mantissa == 16) mantissa = 8, ++exponent;
  if (mantissa < 8) return sign | static_cast<unsigned char>(mantissa);
  if (exponent > 8) return sign | 0x7e;
  return sign | static_cast<unsigned char>((exponent + 7) << 3 | (mantissa - 8));
}
inline float sim_from_e4m3(unsigned char v) {
  int exponent = v >> 3 & 15, mantissa = v & 7;
  float a = (v & 0x7f) == 0x7f ? __uint_as_float(0x7fffffff)
            : exponent == 0    ? std::ldexp(float(mantissa), -9)
                               : std::ldexp(float(8 + mantissa), exponent - 10);
  return (v & 0x80) != 0 ? -a : a;
}
inline void cvt_f32_f16(float& out, unsigned short v) { out = sim_from_f16(v); }
inline void cvt_rn_f16x2_e4m3x2(uint32_t& out, unsigned short pair) {
  out = uint32_t(sim_f16(sim_from_e4m3(pair & 0xff))) |
        uint32_t(sim_f16(sim_from_e4m3(static_cast<unsigned char>(pair >> 8)))) << 16;
}
inline void cvt_rn_bf16_f32(unsigned short& out, float v) { out = sim_bf16(v); }
inline void cvt_rn_f16_f32(unsigned short& out, float v) { out = sim_f16(v); }
inline void cvt_rn_satfinite_e4m3x2_f32(unsigned short& out, float high, float low) {
  out = static_cast<unsigned short>(sim_e4m3(high) << 8 | sim_e4m3(low));
}
inline void cvt_rn_bf16x2_f32(uint32_t& out, float high, float low) {
  out = uint32_t(sim_bf16(high)) << 16 | sim_bf16(low);
}
inline void cvt_rn_f16x2_f32(uint32_t& out, float high, float low) {
  out = uint32_t(sim_f16(high)) << 16 | sim_f16(low);
}

// Matrices of 8x8 16-bit elements, of which each lane has two neighbours of a row.
struct SimMatrices {
  unsigned char* row;
  unsigned* words[4];
};
template <class V>
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(const V& out, uint32_t row) {
  SimMatrices mine{sim_shared_at(row), {}};
  for (int m = 0; m < 4; ++m) mine.words[m] = out[m];
  sim::warp_together(sim::WarpOp::kLoadMatrix, &mine, [](void* const lanes[32]) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) {
        auto* owner = static_cast<SimMatrices*>(lanes[8 * m + lane / 4]);
        std::memcpy(static_cast<SimMatrices*>(lanes[lane])->words[m], owner->row + lane % 4 * 4, 4);
      }
    }
  });
}
template <class V>
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t row, const V& in) {
  SimMatrices mine{sim_shared_at(row), {}};
  unsigned words[4];
  for (int m = 0; m < 4; ++m) words[m] = *in[m], mine.words[m] = &words[m];
  sim::warp_together(sim::WarpOp::kStoreMatrix, &mine, [](void* const lanes[32]) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) {
        auto* owner = static_cast<SimMatrices*>(lanes[8 * m + lane / 4]);
        std::memcpy(owner->row + lane % 4 * 4, static_cast<SimMatrices*>(lanes[lane])->words[m], 4);
      }
    }
  });
}

inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() { sim::matrix_commit(); }
inline void wgmma_wait_group_sync_aligned(uint32_t pending) { sim::matrix_wait(pending); }
// A as a descriptor.
template <int kN, int kK, sim::Factor kFactor, class D, class... T>
inline void sim_wgmma(const D& sum, uint64_t a, uint64_t b, bool keep, int, int, T... transposed) {
  int of[] = {int(transposed)..., 0, 0};
  sim::matrix_product({kFactor, kN, kK, sum.data(), keep, nullptr, a, b, of[0] != 0, of[1] != 0});
}
// A as the words of a thread.
template <int kN, int kK, sim::Factor kFactor, class D, class W, class... T>
inline void sim_wgmma(const D& sum, const std::array<W*, 4>& a, uint64_t b, bool keep, int, int,
                      T... transposed) {
  int of[] = {int(transposed)..., 0};
  uint32_t words[] = {*a[0], *a[1], *a[2], *a[3]};
  sim::matrix_product({kFactor, kN, kK, sum.data(), keep, words, 0, b, false, of[0] != 0});
}

}  // namespace ptx
