// A block chooses a token from a row of logits, as model/choice/token_choice.h defines it. It reads
// the row several times: for the largest logit, for a histogram of weights, for the tokens in the
// bin where a cut lies, and for the draw. A cut is a logit and how many of those that tie with it
// stay: nothing is sorted but the few tokens of one bin.
#pragma once

#include "stretto/device/sm90/choice_scan.h"

// What is asked of a row and where the rest of it lies; in shared memory.
struct AskedRow : ChoiceRow {
  const ChoiceEdit* edits;
  float* before;         // the edited logits meanwhile
  const u32* mask_bits;  // null: all tokens are allowed
  ChoiceResult* result;
};

// The distribution after the largest logit is known.
struct ScaledRow {
  LogitRow row;
  float best, inverse;
  STRETTO_DEVICE float scaled(float logit) const { return choice_scaled(logit, best, inverse); }
  // Among the bins, of which it is one's number and a fraction. Monotone in the logit; weights end
  // where the bins do.
  STRETTO_DEVICE float place(float scaled) const {
    constexpr float kBinsOfOne = float(kChoiceBins) / 27.2f;  // 39 * log(2) = 27.03
    const float at = -scaled * kBinsOfOne, last = float(kChoiceBins - 1);
    return at < last ? at : last;
  }
};

// Tokens stay whose logits are larger, and the first `ties` of those with this one. -inf: all.
struct Cut {
  float logit;
  u32 ties;
  u64 weight;  // of one of them
  u64 weight_before;
};

// Where a cut lies: in a bin of the histogram, between two keys.
struct CutRange {
  u32 bin, low, high;
  u32 count;  // of tokens there
  u64 count_before, weight_before;
  STRETTO_DEVICE bool holds(float place) const {
    return place >= float(bin) && place < float(bin + 1);
  }
};

STRETTO_DEVICE void fill_bins(ChoiceShared& s, const ScaledRow& r) {
  clear_bins(s);
  each_logit(r.row, [&](u32, float logit) {
    const float x = r.scaled(logit);
    const u64 weight = choice_weight(x);
    if (weight != 0) add_to_bin(s, u32(r.place(x)), 1, weight);
  });
  __syncthreads();
}

// f(key, weight) of the tokens in a range that weigh anything.
template <u32 kDepth, class F>
STRETTO_DEVICE void each_in_range(const ScaledRow& r, const CutRange& range, F f) {
  each_logit<kDepth>(r.row, [&](u32, float logit) {
    const float x = r.scaled(logit);
    if (!range.holds(r.place(x))) return;
    const u32 key = choice_key(logit);
    const u64 weight = choice_weight(x);
    if (weight != 0 && key >= range.low && key <= range.high) f(key, weight);
  });
}

// A range of too many tokens: its keys in a histogram of their own.
STRETTO_DEVICE void narrow(ChoiceShared& s, const ScaledRow& r, CutRange& range, u64 target,
                           bool by_weight) {
  u64 largest = 0, smallest = 0;  // the latter by its complement
  each_in_range<1>(r, range, [&](u32 key, u64) {
    largest = key > largest ? key : largest;
    smallest = ~key > smallest ? ~key : smallest;
  });
  range.high = u32(of_block(s, largest, LargestNumber()));
  range.low = ~u32(of_block(s, smallest, LargestNumber()));
  if (range.low == range.high) return;
  u32 shift = 0;
  while ((range.high - range.low) >> shift >= kChoiceBins) ++shift;
  clear_bins(s);
  each_in_range<1>(r, range, [&](u32 key, u64 weight) {
    add_to_bin(s, (range.high - key) >> shift, 1, weight);
  });
  const u64 before = by_weight ? range.weight_before : range.count_before;
  const Crossing c = find_crossing(s, target - before, by_weight);
  range.high -= c.bin << shift;
  const u32 lowest = range.high - ((1u << shift) - 1);
  range.low = lowest > range.low && lowest <= range.high ? lowest : range.low;
  range.count = c.count;
  range.count_before += c.count_before;
  range.weight_before += c.weight_before;
}

// Of the tokens that were listed: which one's key the target lies in.
STRETTO_DEVICE void cut_in_list(ChoiceShared& s, const CutRange& range, u64 target,
                                bool by_weight) {
  for (u32 i = threadIdx.x; i < s.listed; i += kChoiceThreads) {
    const u64 key = s.orders[i], own = s.weights[i];
    u64 count = range.count_before, weight = range.weight_before, ties = 0;
    for (u32 j = 0; j < s.listed; ++j) {
      const bool larger = s.orders[j] > key;
      count += larger ? 1 : 0;
      weight += larger ? s.weights[j] : 0;
      ties += s.orders[j] == key ? 1 : 0;
    }
    const u64 before = by_weight ? weight : count;
    if (before < target && before + ties * (by_weight ? own : 1) >= target) {
      s.found[0] = key, s.found[1] = ties, s.found[2] = own, s.found[3] = weight;
    }
  }
  __syncthreads();
}

// The key at which the count or the weight of tokens, from the best down, reaches the target; all
// that tie are in it. `kept` turns false where the histogram of fill_bins() is gone afterwards.
STRETTO_DEVICE Cut find_cut(ChoiceShared& s, const ScaledRow& r, const Crossing& c, u64 target,
                            bool by_weight, bool& kept) {
  CutRange range{c.bin, 0, 0xffffffffu, c.count, c.count_before, c.weight_before};
#pragma unroll 1
  while (range.count > kChoiceList && range.low != range.high) {
    kept = false;
    narrow(s, r, range, target, by_weight);
  }
  if (range.low == range.high) {
    const float logit = choice_logit(range.high);
    return {logit, range.count, choice_weight(r.scaled(logit)), range.weight_before};
  }
  __syncthreads();
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  each_in_range<4>(r, range, [&](u32 key, u64 weight) {
    const u32 at = atomicAdd(&s.listed, 1u);
    s.orders[at] = key, s.weights[at] = weight;
  });
  __syncthreads();
  cut_in_list(s, range, target, by_weight);
  return {choice_logit(u32(s.found[0])), u32(s.found[1]), s.found[2], s.found[3]};
}

STRETTO_DEVICE bool asks_top_k(const ScaledRow& r, const ChoiceRow& asked) {
  return asked.top_k > 0 && asked.top_k < r.row.vocab;
}
STRETTO_DEVICE bool asks_top_p(const ChoiceRow& asked) { return asked.top_p != kNoTopP; }
STRETTO_DEVICE u64 enough_of(u64 total, const ChoiceRow& asked) {
  return __umul64hi(total, asked.top_p) + 1;
}

// Top-k, and then top-p of the weight that it leaves. Of a row whose histogram is there.
STRETTO_DEVICE Cut cut_of(ChoiceShared& s, const ScaledRow& r, const ChoiceRow& asked, u64 total) {
  Cut cut{choice_dropped(), 0, 0, 0};
  bool kept = true;
#pragma unroll 1
  for (u32 part = 0; part < 2; ++part) {
    const bool by_weight = part == 1;
    if (by_weight ? !asks_top_p(asked) : !asks_top_k(r, asked)) continue;
    if (!kept) fill_bins(s, r);
    kept = true;
    const u64 target = by_weight ? enough_of(total, asked) : asked.top_k;
    const Crossing c = find_crossing(s, target, by_weight);
    if (!c.found) continue;  // there are not so many
    cut = find_cut(s, r, c, target, by_weight, kept);
    if (by_weight) cut.ties = u32((target - cut.weight_before + cut.weight - 1) / cut.weight);
    total = cut.weight_before + cut.ties * cut.weight;
  }
  return cut;
}

// The sum of the weights of listed tokens for which f(order) holds.
template <class F>
STRETTO_DEVICE u64 listed_weight(const ChoiceShared& s, F f) {
  u64 sum = 0;
#pragma unroll 4
  for (u32 j = 0; j < s.listed; ++j) sum += f(s.orders[j]) ? s.weights[j] : 0;
  return sum;
}

// All tokens in the bins up to a cut's, which are few: whatever is drawn is among them.
STRETTO_DEVICE void list_few(ChoiceShared& s, const ScaledRow& r, u32 bin) {
  __syncthreads();
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  each_logit(r.row, [&](u32 token, float logit) {
    const float x = r.scaled(logit);
    if (r.place(x) >= float(bin + 1)) return;
    const u64 weight = choice_weight(x);
    if (weight == 0) return;
    const u32 at = atomicAdd(&s.listed, 1u);
    s.orders[at] = choice_order(logit, token), s.weights[at] = weight;
  });
  __syncthreads();
}

// A thread has a token. `total`: of the whole row; `by_count`: top-k leaves fewer.
STRETTO_DEVICE u32 draw_of_few(ChoiceShared& s, const ChoiceRow& asked, u64 total, bool by_count,
                               u64 least) {
  const bool has = threadIdx.x < s.listed;
  const u64 own = has ? s.orders[threadIdx.x] : 0, weight = has ? s.weights[threadIdx.x] : 0;
  bool kept = has;
  if (by_count) {
    u32 larger = 0;
    for (u32 j = 0; has && j < s.listed; ++j) larger += s.orders[j] >> 32 > own >> 32 ? 1 : 0;
    kept = has && larger < asked.top_k;
    total = of_block(s, kept ? weight : 0, AddNumbers());
    if (has) s.weights[threadIdx.x] = kept ? weight : 0;
    __syncthreads();
  }
  if (kept && asks_top_p(asked)) {
    kept = listed_weight(s, [&](u64 order) { return order > own; }) < enough_of(total, asked);
  }
  kept = kept && weight >= least;
  const u64 all = of_block(s, kept ? weight : 0, AddNumbers());
  if (has) s.weights[threadIdx.x] = kept ? weight : 0;
  __syncthreads();
  const u64 target = __umul64hi(asked.random, all);
  if (kept) {
    const u32 token = choice_token(own);
    const u64 before = listed_weight(s, [&](u64 order) { return choice_token(order) < token; });
    if (before <= target && target < before + weight) s.found[3] = token;
  }
  __syncthreads();
  return u32(s.found[3]);
}

// A piece of the row is of so many groups that the bins hold all of them.
STRETTO_DEVICE u32 groups_of_piece(const LogitRow& r) {
  u32 groups = 32;
  while ((r.groups() + groups - 1) / groups > kChoiceBins) groups *= 2;
  return groups;
}

// What is kept of four tokens, but for those at the cut, and which those are.
struct KeptGroup {
  u64 weights[4];
  bool ties[4];
  STRETTO_DEVICE u64 weight() const { return weights[0] + weights[1] + weights[2] + weights[3]; }
  STRETTO_DEVICE u32 num_ties() const { return ties[0] + ties[1] + ties[2] + ties[3]; }
};
STRETTO_DEVICE KeptGroup kept_group(const ScaledRow& r, const Cut& cut, u64 least, u32 group,
                                    float (&x)[4]) {
  if (r.row.mask != nullptr) mask_group(r.row, group, x);
  KeptGroup out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const u64 weight = choice_weight(r.scaled(x[i]));
    out.ties[i] = x[i] == cut.logit;
    out.weights[i] = x[i] > cut.logit && weight >= least ? weight : 0;
  }
  return out;
}

STRETTO_DEVICE u64 smaller(u64 a, u64 b) { return a < b ? a : b; }

// Which piece the draw falls into, what is left of it there and how many ties may still be kept.
struct DrawnPiece {
  u32 piece;
  u64 left, ties;
};
STRETTO_DEVICE DrawnPiece draw_piece(ChoiceShared& s, const Cut& cut, u64 random) {
  __syncthreads();
  const u32 first = threadIdx.x * kBinsOfThread;
  u64 count = 0;
#pragma unroll
  for (u32 b = first; b < first + kBinsOfThread; ++b) count += s.counts[b];
  const u64 ties_before = before_in_block(s, count).own;
  u64 weights[kBinsOfThread], ties = ties_before, weight = 0;
#pragma unroll
  for (u32 b = 0; b < kBinsOfThread; ++b) {
    const u64 next = ties + s.counts[first + b];
    const u64 here = smaller(next, cut.ties) - smaller(ties, cut.ties);
    weights[b] = weight_of_bin(s, first + b) + here * cut.weight;
    weight += weights[b], ties = next;
  }
  const Before before = before_in_block(s, weight);
  const u64 target = __umul64hi(random, before.all);
  u64 at = before.own;
  ties = ties_before;
#pragma unroll
  for (u32 b = 0; b < kBinsOfThread; ++b) {
    if (at <= target && target < at + weights[b]) {
      s.found[0] = first + b, s.found[1] = target - at,
      s.found[2] = cut.ties - smaller(ties, cut.ties);
    }
    at += weights[b], ties += s.counts[first + b];
  }
  __syncthreads();
  return {u32(s.found[0]), s.found[1], s.found[2]};
}

// By one warp: the token in the piece.
STRETTO_DEVICE void draw_token(ChoiceShared& s, const ScaledRow& r, const Cut& cut, u64 least,
                               DrawnPiece p, u32 groups) {
  for (u32 first = p.piece * groups; first < (p.piece + 1) * groups; first += 32) {
    const u32 group = first + threadIdx.x % 32;
    float x[4];
    load_group(r.row, group, x);
    KeptGroup kept = kept_group(r, cut, least, group, x);
    u64 ties = before_in_warp(kept.num_ties());
    const u64 all_ties = of_warp(kept.num_ties(), AddNumbers());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (kept.ties[i] && ties++ < p.ties) kept.weights[i] = cut.weight;
    }
    u64 at = before_in_warp(kept.weight());
    const u64 all = of_warp(kept.weight(), AddNumbers());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at <= p.left && p.left < at + kept.weights[i]) s.found[3] = u64(r.row.token(group) + i);
      at += kept.weights[i];
    }
    if (p.left < all) return;
    p.left -= all;
    p.ties -= smaller(p.ties, all_ties);
  }
}

STRETTO_DEVICE u32 draw(ChoiceShared& s, const ScaledRow& r, const ChoiceRow& asked) {
  const u64 least = asked.min_weight > 0 ? asked.min_weight : 1;
  Cut cut{choice_dropped(), 0, 0, 0};
  if (asks_top_k(r, asked) || asks_top_p(asked)) {
    fill_bins(s, r);
    Crossing c = find_crossing(s, asks_top_k(r, asked) ? asked.top_k : 0, false);
    const u64 total = c.all_weights;
    const bool by_count = c.found;
    if (!c.found && asks_top_p(asked)) c = find_crossing(s, enough_of(total, asked), true);
    if (c.found && c.count_before + c.count <= kChoiceFew) {
      list_few(s, r, c.bin);
      return draw_of_few(s, asked, total, by_count, least);
    }
    cut = cut_of(s, r, asked, total);
  }
  if (cut.weight < least) cut.ties = 0;
  const u32 groups = groups_of_piece(r.row);
  clear_bins(s);
  each_group(r.row, [&](u32 group, float(&x)[4]) {
    const KeptGroup kept = kept_group(r, cut, least, group, x);
    const u64 weight = sum_of_warp(kept.weight());
    const u32 ties = cut.ties == 0 ? 0 : __reduce_add_sync(0xffffffffu, kept.num_ties());
    if (threadIdx.x % 32 == 0 && (weight != 0 || ties != 0)) {
      add_to_bin(s, group / groups, ties, weight);
    }
  });
  const DrawnPiece piece = draw_piece(s, cut, asked.random);
  if (threadIdx.x < 32) draw_token(s, r, cut, least, piece, groups);
  __syncthreads();
  return u32(s.found[3]);
}

// The largest of the allowed logits by choice_order(), 0 where all are -inf: of this thread.
STRETTO_DEVICE u64 largest_of_thread(const LogitRow& r, bool& not_number) {
  float best = choice_dropped();
  u32 token = 0;
  each_group(r, [&](u32 group, float(&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) not_number |= !(x[i] <= 3.402823466e+38f);
    if (r.mask != nullptr) mask_group(r, group, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (x[i] > best) best = x[i], token = u32(r.token(group) + i);
    }
  });
  return best == choice_dropped() ? 0 : choice_order(best, token);
}

// The orders of `count` threads' largest tokens are at least this. 0: there are not so many.
STRETTO_DEVICE u64 nth_of_threads(ChoiceShared& s, u64 largest, u32 count) {
  __syncthreads();
  s.orders[threadIdx.x] = largest;
  if (threadIdx.x == 0) s.found[0] = 0;
  __syncthreads();
  u32 larger = 0;
#pragma unroll 8
  for (u32 i = 0; i < kChoiceThreads; ++i) larger += s.orders[i] > largest ? 1 : 0;
  if (largest != 0 && larger + 1 == count) s.found[0] = largest;
  __syncthreads();
  return s.found[0];
}

// The weight of the row as it is, and its best tokens.
STRETTO_DEVICE void tell_row(ChoiceShared& s, const LogitRow& r, u64 of_thread, u64 best,
                             const ChoiceRow& asked, ChoiceResult& out) {
  const u32 wanted = asked.num_top < i32(r.vocab) ? u32(asked.num_top) : r.vocab;
  const u64 least = wanted > 0 ? nth_of_threads(s, of_thread, wanted) : ~0ull;
  const float largest = choice_logit(u32(best >> 32)), lowest = choice_logit(u32(least >> 32));
  __syncthreads();
  if (threadIdx.x == 0) s.listed = 0;
  __syncthreads();
  u64 total = 0;
  each_group(r, [&](u32 group, float(&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      total += choice_weight(x[i] - largest);
      // A NaN where none or all are wanted.
      if (wanted == 0 || x[i] < lowest || x[i] == choice_dropped()) continue;
      const u64 order = choice_order(x[i], u32(r.token(group) + i));
      if (order < least) continue;
      const u32 at = atomicAdd(&s.listed, 1u);
      if (at < kChoiceList) s.orders[at] = order;
    }
  });
  total = of_block(s, total, AddNumbers());
  const bool fits = s.listed <= kChoiceList && s.listed >= wanted;
  if (threadIdx.x == 0) {
    if (!fits) out.status = ChoiceStatus::kElsewhere;
    out.total = total, out.best = largest, out.num_top = wanted;
  }
  for (u32 i = threadIdx.x; fits && i < s.listed; i += kChoiceThreads) {
    u32 larger = 0;
    for (u32 j = 0; j < s.listed; ++j) larger += s.orders[j] > s.orders[i] ? 1 : 0;
    if (larger < wanted) {
      out.top[larger] = {choice_token(s.orders[i]), choice_logit(u32(s.orders[i] >> 32))};
    }
  }
}

STRETTO_DEVICE void tell_token(ChoiceShared& s, const LogitRow& r, u32 token, ChoiceResult& out) {
  const float logit = r.at[token];
  const float best = out.best;  // since tell_row()
  u64 larger = 0;
  if (logit != best) {
    each_group(r, [&](u32, float(&x)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) larger += x[i] > logit ? 1 : 0;
    });
    larger = of_block(s, larger, AddNumbers());
  }
  if (threadIdx.x == 0) out.logit = logit, out.rank = u32(larger) + 1;
}

// Whether an edited logit was not a number: it may look like one afterwards.
STRETTO_DEVICE bool edit_row(const LogitRow& r, const AskedRow& asked) {
  bool not_number = false;
  __syncthreads();  // nobody reads the row as it was any more
  for (u32 i = threadIdx.x; i < asked.num_edits; i += kChoiceThreads) {
    const ChoiceEdit e = asked.edits[i];
    const float logit = r.at[e.token];
    not_number |= !(logit <= 3.402823466e+38f);
    asked.before[i] = logit;
    r.at[e.token] = choice_edited(logit, e, asked.repetition_penalty);
  }
  __syncthreads();
  return not_number;
}

STRETTO_DEVICE void restore_row(const LogitRow& r, const AskedRow& asked) {
  __syncthreads();
  for (u32 i = threadIdx.x; i < asked.num_edits; i += kChoiceThreads) {
    r.at[asked.edits[i].token] = asked.before[i];
  }
  __syncthreads();
}

struct Largest {
  u64 of_thread, of_block;
  bool not_number;
};
STRETTO_DEVICE Largest largest_of(ChoiceShared& s, const LogitRow& r, bool not_number) {
  Largest out{largest_of_thread(r, not_number), 0, false};
  out.not_number = __syncthreads_or(not_number ? 1 : 0) != 0;
  out.of_block = of_block(s, out.of_thread, LargestNumber());
  return out;
}

STRETTO_DEVICE void choose_from_row(ChoiceShared& s, LogitRow r, const AskedRow& asked) {
  if (threadIdx.x == 0) asked.result->status = ChoiceStatus::kChosen;
  Largest best{0, 0, false};
  const bool tells = asked.num_top >= 0;
  // The row as it is, where it is told of, and as it is changed.
#pragma unroll 1
  for (u32 changed = 0; changed < 2; ++changed) {
    const bool is_same = asked.mask_bits == nullptr && asked.num_edits == 0;
    if (changed == 0 ? !tells : tells && is_same) continue;
    bool not_number = false;
    if (changed == 1) not_number = edit_row(r, asked);
    r.mask = changed == 1 ? asked.mask_bits : nullptr;
    best = largest_of(s, r, not_number);
    if (changed == 1 || best.not_number || best.of_block == 0) continue;
    tell_row(s, r, best.of_thread, best.of_block, asked, *asked.result);
  }
  const bool fails = best.not_number || best.of_block == 0;
  if (fails && threadIdx.x == 0) {
    asked.result->status = best.not_number ? ChoiceStatus::kNotNumbers : ChoiceStatus::kNothing;
  }
  u32 token = choice_token(best.of_block);
  if (!fails && asked.inverse_temperature != 0.f) {
    const ScaledRow scaled{r, choice_logit(u32(best.of_block >> 32)), asked.inverse_temperature};
    token = draw(s, scaled, asked);
  }
  restore_row(r, asked);
  if (fails) return;
  if (threadIdx.x == 0) asked.result->token = token;
  r.mask = nullptr;
  if (tells) tell_token(s, r, token, *asked.result);
}
