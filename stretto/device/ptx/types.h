// Integer and 16-bit float types of device code. NVRTC compiles without any system header, so they
// are spelled here.
#pragma once

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

#define STRETTO_DEVICE __device__ __forceinline__

// Bits of a bfloat16, an IEEE binary16 and an OCP e4m3; arithmetic happens in float.
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};
struct f8e4m3 {
  u8 bits;
};

// A CUtensorMap, passed by value in the kernel's parameters.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

STRETTO_DEVICE float to_float(float v) { return v; }
STRETTO_DEVICE float to_float(bf16 v) { return __uint_as_float(u32(v.bits) << 16); }
STRETTO_DEVICE float to_float(f16 v) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(v.bits));
  return out;
}
STRETTO_DEVICE float to_float(f8e4m3 v) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(u16(v.bits)));
  return to_float(f16{u16(halves & 0xffff)});
}
STRETTO_DEVICE float to_float(i32 v) { return float(v); }
STRETTO_DEVICE float to_float(i8 v) { return float(v); }
STRETTO_DEVICE float to_float(u8 v) { return float(v); }
STRETTO_DEVICE float to_float(bool v) { return v ? 1.f : 0.f; }

// Rounds to nearest even, once.
template <class T>
STRETTO_DEVICE T from_float(float v);
template <>
STRETTO_DEVICE float from_float<float>(float v) {
  return v;
}
template <>
STRETTO_DEVICE bf16 from_float<bf16>(float v) {
  bf16 out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(v));
  return out;
}
template <>
STRETTO_DEVICE f16 from_float<f16>(float v) {
  f16 out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(v));
  return out;
}
template <>
STRETTO_DEVICE f8e4m3 from_float<f8e4m3>(float v) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(v));
  return f8e4m3{u8(pair & 0xff)};
}
template <>
STRETTO_DEVICE i32 from_float<i32>(float v) {
  return i32(v);
}
template <>
STRETTO_DEVICE bool from_float<bool>(float v) {
  return v != 0.f;
}

// Two neighbours in one register, the first in the low half.
template <class T>
STRETTO_DEVICE u32 pack2(float lo, float hi);
template <>
STRETTO_DEVICE u32 pack2<bf16>(float lo, float hi) {
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  return out;
}
template <>
STRETTO_DEVICE u32 pack2<f16>(float lo, float hi) {
  u32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(hi), "f"(lo));
  return out;
}

// Floored, as index expressions are; b > 0.
STRETTO_DEVICE int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
// The same for a >= 0.
STRETTO_DEVICE int quotient_of(int a, int b) { return int(u32(a) / u32(b)); }
STRETTO_DEVICE int remainder_of(int a, int b) { return int(u32(a) % u32(b)); }
STRETTO_DEVICE int floor_mod(int a, int b) { return a - floor_div(a, b) * b; }

// Keeps the compiler from computing what depends on v ahead of a loop, where it takes registers.
STRETTO_DEVICE int computed_here(int v) {
  asm volatile("" : "+r"(v));
  return v;
}
// An address that is not computed anew where it is added to.
template <class T>
STRETTO_DEVICE const T* computed_here(const T* p) {
  asm volatile("" : "+l"(p));
  return p;
}
