// A row of logits read by all threads of a block, again and again, and what they find out together:
// sums of whole numbers, largest numbers, histograms, and where a running sum passes a number.
// Before choose.h.
#pragma once

#include "stretto/abi/token_choice.h"
#include "stretto/device/ptx/types.h"

constexpr u32 kChoiceThreads = 512, kChoiceWarps = kChoiceThreads / 32;
constexpr u32 kChoiceBins = 2048, kBinsOfThread = kChoiceBins / kChoiceThreads;
constexpr u32 kChoiceList = 1024;  // tokens of a bin that are compared at once
constexpr u32 kChoiceFew = 256;    // tokens that one is drawn from at once

// Shared memory of a block.
struct ChoiceShared {
  u32 counts[kChoiceBins];  // a histogram: tokens, and low and high words of what they weigh
  u32 low[kChoiceBins], high[kChoiceBins];
  u64 orders[kChoiceList], weights[kChoiceList];  // tokens that were listed
  u64 words[2 * kChoiceWarps];
  u64 found[4];
  u32 listed, flag;
};

// Logits in groups of four, aligned as vectors are: the first and the last may be in part of
// others, which read as -inf.
struct LogitRow {
  float* at;
  const u32* mask;  // null: all tokens are allowed
  u32 vocab;
  u32 shift;  // elements of the first group before the row
  STRETTO_DEVICE u32 groups() const { return (vocab + shift + 3) / 4; }
  STRETTO_DEVICE i32 token(u32 group) const { return i32(4 * group) - i32(shift); }
};

STRETTO_DEVICE LogitRow logit_row(float* at, const u32* mask, u32 vocab) {
  return {at, mask, vocab, u32(reinterpret_cast<u64>(at) / sizeof(float)) % 4};
}

STRETTO_DEVICE void load_group(const LogitRow& r, u32 group, float (&x)[4]) {
  const i32 t = r.token(group);
  if (t >= 0 && t + 4 <= i32(r.vocab)) {
    const float4 v = *reinterpret_cast<const float4*>(r.at + t);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = t + i >= 0 && t + i < i32(r.vocab) ? r.at[t + i] : choice_dropped();
  }
}

STRETTO_DEVICE bool is_allowed(const LogitRow& r, i32 token) {
  return r.mask == nullptr || (r.mask[token / 32] >> (token % 32) & 1) != 0;
}

// Leaves -inf of tokens that are not allowed.
STRETTO_DEVICE void mask_group(const LogitRow& r, u32 group, float (&x)[4]) {
  const i32 t = r.token(group);
  if (t < 0 || t + 4 > i32(r.vocab)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (t + i >= 0 && t + i < i32(r.vocab) && !is_allowed(r, t + i)) x[i] = choice_dropped();
    }
    return;
  }
  u32 bits = r.mask[t / 32] >> (t % 32);
  if (t % 32 > 28) bits |= r.mask[t / 32 + 1] << (32 - t % 32);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((bits >> i & 1) == 0) x[i] = choice_dropped();
  }
}

// f(group, logits), whole warps together; groups past the last are of -inf. kDepth: loads that a
// thread has under way.
template <u32 kDepth = 4, class F>
STRETTO_DEVICE void each_group(const LogitRow& r, F f) {
  const u32 groups = (r.groups() + 31) / 32 * 32;
#pragma unroll 1
  for (u32 first = threadIdx.x; first < groups; first += kDepth * kChoiceThreads) {
    float x[kDepth][4];
#pragma unroll
    for (u32 d = 0; d < kDepth; ++d) load_group(r, first + d * kChoiceThreads, x[d]);
#pragma unroll
    for (u32 d = 0; d < kDepth; ++d) f(first + d * kChoiceThreads, x[d]);
  }
}

// f(token, logit) of what is allowed.
template <u32 kDepth = 4, class F>
STRETTO_DEVICE void each_logit(const LogitRow& r, F f) {
  each_group<kDepth>(r, [&](u32 group, float(&x)[4]) {
    if (r.mask != nullptr) mask_group(r, group, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) f(u32(r.token(group) + i), x[i]);
  });
}

struct AddNumbers {
  STRETTO_DEVICE u64 operator()(u64 a, u64 b) const { return a + b; }
};
struct LargestNumber {
  STRETTO_DEVICE u64 operator()(u64 a, u64 b) const { return a > b ? a : b; }
};

template <class F>
STRETTO_DEVICE u64 of_warp(u64 v, F f) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) v = f(v, __shfl_xor_sync(0xffffffffu, v, lanes));
  return v;
}

// The sum of numbers below 2^42.
STRETTO_DEVICE u64 sum_of_warp(u64 v) {
  const u32 low = __reduce_add_sync(0xffffffffu, u32(v) & 0x1fffffu);
  return (u64(__reduce_add_sync(0xffffffffu, u32(v >> 21))) << 21) + low;
}

// Of all threads, on all threads. Barriers before and after it.
template <class F>
STRETTO_DEVICE u64 of_block(ChoiceShared& s, u64 v, F f) {
  v = of_warp(v, f);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s.words[threadIdx.x / 32] = v;
  __syncthreads();
  v = s.words[0];
#pragma unroll
  for (u32 w = 1; w < kChoiceWarps; ++w) v = f(v, s.words[w]);
  return v;
}

// The sum of the lanes before.
STRETTO_DEVICE u64 before_in_warp(u64 v) {
  const int lane = int(threadIdx.x % 32);
  u64 sum = v;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const u64 other = __shfl_sync(0xffffffffu, sum, lane - lanes);
    if (lane >= lanes) sum += other;
  }
  return sum - v;
}

// The sum of the threads before, and of all.
struct Before {
  u64 own, all;
};
STRETTO_DEVICE Before before_in_block(ChoiceShared& s, u64 v) {
  const u64 in_warp = before_in_warp(v);
  __syncthreads();
  if (threadIdx.x % 32 == 31) s.words[threadIdx.x / 32] = in_warp + v;
  __syncthreads();
  Before out{in_warp, 0};
#pragma unroll
  for (u32 w = 0; w < kChoiceWarps; ++w) {
    if (w < threadIdx.x / 32) out.own += s.words[w];
    out.all += s.words[w];
  }
  return out;
}

STRETTO_DEVICE void clear_bins(ChoiceShared& s) {
  __syncthreads();
  for (u32 b = threadIdx.x; b < kChoiceBins; b += kChoiceThreads) {
    s.counts[b] = s.low[b] = s.high[b] = 0;
  }
  __syncthreads();
}

STRETTO_DEVICE void add_to_bin(ChoiceShared& s, u32 bin, u32 count, u64 weight) {
  if (count != 0) atomicAdd(&s.counts[bin], count);
  const u32 low = u32(weight);
  u32 high = u32(weight >> 32);
  if (low != 0) high += atomicAdd(&s.low[bin], low) + low < low ? 1 : 0;
  if (high != 0) atomicAdd(&s.high[bin], high);
}

STRETTO_DEVICE u64 weight_of_bin(const ChoiceShared& s, u32 bin) {
  return u64(s.high[bin]) << 32 | s.low[bin];
}

// Where a running count, or sum of weights, over the bins reaches `target` first.
struct Crossing {
  bool found;
  u32 bin;
  u32 count;  // in that bin
  u64 count_before, weight_before;
  u64 all_counts, all_weights;
};
STRETTO_DEVICE Crossing find_crossing(ChoiceShared& s, u64 target, bool by_weight) {
  __syncthreads();
  const u32 first = threadIdx.x * kBinsOfThread;
  u64 count = 0, weight = 0;
#pragma unroll
  for (u32 b = first; b < first + kBinsOfThread; ++b) {
    count += s.counts[b], weight += weight_of_bin(s, b);
  }
  const Before counts = before_in_block(s, count), weights = before_in_block(s, weight);
  if (threadIdx.x == 0) s.flag = 0;
  __syncthreads();
  count = counts.own, weight = weights.own;
#pragma unroll
  for (u32 b = first; b < first + kBinsOfThread; ++b) {
    const u64 next_count = count + s.counts[b], next_weight = weight + weight_of_bin(s, b);
    const bool here = by_weight ? weight < target && next_weight >= target
                                : count < target && next_count >= target;
    if (here) s.flag = 1, s.found[0] = b, s.found[1] = count, s.found[2] = weight;
    count = next_count, weight = next_weight;
  }
  __syncthreads();
  const u32 bin = u32(s.found[0]) % kChoiceBins;
  return {s.flag != 0, bin, s.counts[bin], s.found[1], s.found[2], counts.all, weights.all};
}
