// Packet buffers: payload beside the number of its launch, its tag, so that what arrives says so
// itself; a reader waits for the tag of its launch. Two forms, of which a buffer has one:
//
// Words: every 4 bytes of payload lie beside a tag in one 8-byte word, which arrives whole. As in
// NCCL's LL protocol, words go in pairs where they lie so that 16 bytes are one access.
//
// Lines: of 128 bytes that eight threads store by one instruction the last 8 are the tag. A line
// arrives whole, as NCCL's LL128 protocol has it, too (docs/decisions/0019-packets-in-lines.md).
// What the eighth thread has no room for follows as two words, those of two lines side by side: 288
// bytes for 256 of payload, a run, in the 512 that words would take.
#pragma once

#include "stretto/device/sm90/global.h"
#include "stretto/device/sm90/signal.h"

template <class T>
constexpr int kPerPacket = 4 / int(sizeof(T));

// Words of a thread that are under way at a time.
constexpr int kPacketBatch = 16;

STRETTO_DEVICE u64 packet_word(u32 payload, u32 tag) { return (u64(tag) << 32) | payload; }

// The payload of slots (i, j), ...
template <class T, class V>
STRETTO_DEVICE u32 packet_payload(const V& v, int i, int j, bool second) {
  if constexpr (kPerPacket<T> == 1) {
    auto e = v.at(i, j);
    return *reinterpret_cast<const u32*>(&e);
  } else if constexpr (Paired<V>) {  // whatever the bits are
    return second ? v.w[i][j / 2] : v.w[i][j / 2] & 0xffff;
  } else {
    return pack2<T>(to_float(v.at(i, j)), second ? to_float(v.at(i, j + 1)) : 0.f);
  }
}
template <class T, class V>
STRETTO_DEVICE void put_payload(V& v, int i, int j, u32 payload) {
  if constexpr (kPerPacket<T> == 1) {
    v.put(i, j, *reinterpret_cast<const typename V::Compute*>(&payload));
  } else {
    T e[2] = {T{u16(payload & 0xffff)}, T{u16(payload >> 16)}};
    put_raw(v, i, j, e);
  }
}

// What one access of a thread brings or takes: kStep elements from (r, c) of the tile on, which its
// slots (i, j) hold. `box.data` and `row_stride` count words, `rows` and `cols` elements.

// kWords: words that may be written at once, 1 or 2, because strides and origin are multiples of
// it.
template <class T, int kWords>
class Words {
 public:
  static constexpr int kStep = kPerPacket<T> * kWords;
  static constexpr int kHeld = kWords;
  static constexpr bool kOfWarp = false;

  template <class V>
  static STRETTO_DEVICE void store(const V& v, int i, int j, const Box<u64>& box, i32 r, i32 c,
                                   u32 tag, const Team&) {
    u64 words[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      bool second = c + k * kPer + 1 < box.cols;
      words[k] = packet_word(packet_payload<T>(v, i, j + k * kPer, second), tag);
    }
    u64* to = box.data + r * box.row_stride + c / kPer;
    if constexpr (kWords == 2) {
      if (box.has_cols(c, kStep)) return store_relaxed_sys(to, words);
    }
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if (box.has_cols(c + k * kPer, 1)) store_relaxed_sys(to + k, words[k]);
    }
  }

  // As if zeros had come.
  STRETTO_DEVICE void clear(u32 tag, const Team&) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) words_[k] = packet_word(0, tag);
  }
  STRETTO_DEVICE void ask(const Box<u64>& box, i32 r, i32 c, const Team&) {
    const u64* from = box.data + r * box.row_stride + c / kPer;
    if constexpr (kWords == 2) {
      if (box.has_cols(c, kStep)) return load_relaxed_sys(words_, from);
    }
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      if (box.has_cols(c + k * kPer, 1)) words_[k] = load_relaxed_sys(from + k);
    }
  }
  // Else `seen` is a tag that is not this launch's.
  STRETTO_DEVICE bool came(u32 tag, u32& seen, const Team&) const {
    bool all = true;
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      u32 its = u32(words_[k] >> 32);
      all &= its == tag;
      if (its != tag) seen = its;
    }
    return all;
  }
  template <class V>
  STRETTO_DEVICE void put(V& v, int i, int j, const Team&) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) put_payload<T>(v, i, j + k * kPer, u32(words_[k]));
  }

 private:
  static constexpr int kPer = kPerPacket<T>;
  u64 words_[kWords];
};

// Of warps of which eight threads each have a line's 128 bytes of a row, all of which exist or
// none. Of the rows that a warp has all go or none.
template <class T>
class Lines {
 public:
  static constexpr int kStep = 16 / int(sizeof(T));
  static constexpr int kHeld = 3;
  static constexpr bool kOfWarp = true;

  template <class V>
  static STRETTO_DEVICE void store(const V& v, int i, int j, const Box<u64>& box, i32 r, i32 c,
                                   u32 tag, const Team& t) {
    if (!box.has_cols(c, kStep)) return;
    u32 w[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = packet_payload<T>(v, i, j + k * kPer, true);
    store_words(w, Place(box, r, c), tag, t);
  }
  // Row r and the seven others that the warp has, of which this thread has pairs of 64 columns from
  // c on, slots (i, j), ...: eight threads have two rows, whose lines follow each other.
  template <class V>
  static STRETTO_DEVICE void store_fragment(const V& v, int i, int j, const Box<u64>& box, i32 r,
                                            i32 c, u32 tag, const Team& t) {
    if (!box.has_cols(c, 64)) return;
    u32 w[2][4];  // of either half of the columns
#pragma unroll
    for (int k = 0; k < 8; ++k) w[k / 4][k % 4] = packet_payload<T>(v, i, j + 2 * k, true);
    exchange_in_quad(w[0], t.tid);
    exchange_in_quad(w[1], t.tid);
    bool second = (t.tid & 4) != 0;  // of the two rows
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      u32 got = __shfl_xor_sync(0xffffffffu, second ? w[0][k] : w[1][k], 4);
      w[1][k] = second ? w[1][k] : got;
      w[0][k] = second ? got : w[0][k];
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      store_words(w[row], Place(box, r - second + row, c + i32(t.tid % 8) * kStep), tag, t);
    }
  }

  STRETTO_DEVICE void clear(u32 tag, const Team& t) {
    line_[0] = 0;
    line_[1] = ends_line(t) ? tag : 0;
    rest_ = packet_word(0, tag);
  }
  STRETTO_DEVICE void ask(const Box<u64>& box, i32 r, i32 c, const Team& t) {
    if (!box.has_cols(c, kStep)) return;
    Place from(box, r, c);
    __syncwarp();
    load_line(line_, from.line);
    if (has_rest(t)) rest_ = load_relaxed_sys(from.rest + t.tid % 2);
  }
  STRETTO_DEVICE bool came(u32 tag, u32& seen, const Team& t) const {
    if (!has_rest(t)) return true;
    u32 its = u32(rest_ >> 32), ends = ends_line(t) ? u32(line_[1]) : tag;
    if (its != tag || ends != tag) seen = its != tag ? its : ends;
    return its == tag && ends == tag;
  }
  template <class V>
  STRETTO_DEVICE void put(V& v, int i, int j, const Team& t) const {
    u32 w[4] = {u32(line_[0]), u32(line_[0] >> 32), u32(line_[1]), u32(line_[1] >> 32)};
    u32 before = __shfl_xor_sync(0xffffffffu, u32(rest_), 1);
    if (ends_line(t)) {
      w[2] = before;
      w[3] = u32(rest_);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) put_payload<T>(v, i, j + k * kPer, w[k]);
  }

 private:
  static constexpr int kPer = kPerPacket<T>;

  // Where 16 bytes of payload go of a run, which has 512 bytes of the buffer: two lines, and what
  // either has no room for.
  struct Place {
    u64 *line, *rest;
    STRETTO_DEVICE Place(const Box<u64>& box, i32 r, i32 c) {
      u64 at = reinterpret_cast<u64>(box.data + r * box.row_stride + c / kPer);
      u64 run = at & ~u64(511), sixteenth = (at & 511) / 32;
      line = reinterpret_cast<u64*>(run + sixteenth * 16);
      rest = reinterpret_cast<u64*>(run + 256 + sixteenth / 8 * 16);
    }
  };

  static STRETTO_DEVICE bool ends_line(const Team& t) { return t.tid % 8 == 7; }
  // Loads a word of what the last had no room for.
  static STRETTO_DEVICE bool has_rest(const Team& t) { return t.tid % 8 >= 6; }
  static STRETTO_DEVICE void store_words(const u32 (&w)[4], const Place& to, u32 tag,
                                         const Team& t) {
    u64 line[2] = {(u64(w[1]) << 32) | w[0], ends_line(t) ? tag : (u64(w[3]) << 32) | w[2]};
    __syncwarp();  // one instruction for all of a line
    store_line(to.line, line);
    if (!ends_line(t)) return;
    u64 rest[2] = {packet_word(w[2], tag), packet_word(w[3], tag)};
    store_relaxed_sys(to.rest, rest);
  }

  u64 line_[2], rest_;
};

// Whether the row goes: with lines if one goes that its warp has.
template <class F>
STRETTO_DEVICE bool row_goes(bool exists) {
  return F::kOfWarp ? __any_sync(0xffffffffu, exists) : exists;
}

// F: Words or Lines.
template <class L, class F, class V>
STRETTO_DEVICE void store_packets(const V& v, const Box<u64>& box, u32 tag, const Team& t) {
  if (L::kTileRows == 1 && !L::stores_cols(t)) return;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = L::kTileRows == 1 ? 0 : L::row(t, i);
    if (!row_goes<F>(box.has_row(r))) continue;
    if constexpr (Fragment<L> && F::kOfWarp) {
#pragma unroll
      for (int j = 0; j < V::kC; j += 16) F::store_fragment(v, i, j, box, r, j * 4, tag, t);
    } else {
#pragma unroll
      for (int j = 0; j < V::kC; j += F::kStep) F::store(v, i, j, box, r, L::col(t, j), tag, t);
    }
  }
}

// A tile of packets on its way, `kAtOnce` words of a thread at a time, all of which are asked for
// before the first tag is looked at. Who waits for several tiles asks for all of them before it
// takes the first.
template <class L, class F, class V, int kAtOnce = kPacketBatch>
class PacketLoads {
 public:
  STRETTO_DEVICE PacketLoads(const Box<u64>& box, u32 tag, const Team& t)
      : box_(box), tag_(tag), team_(t) {
    ask(0);
  }

  // `aborted`: raised where a tag does not come (device/sm90/signal.h).
  STRETTO_DEVICE void take(V& v, const Watch& w, int site, volatile u32* aborted = nullptr) {
#pragma unroll
    for (int first = 0; first < kAll; first += kBatch) {
      if (first > 0) ask(first);
      PollClock clock;
      for (;; ask(first)) {
        u32 seen = tag_;
        bool mine = complete(seen);
        if (!of_any(!mine)) break;
        if (!of_any(!mine && clock.aborts(w, site, -1, tag_, seen))) continue;
        if (aborted != nullptr) abort_block(aborted);
        break;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (first + b < kAll) {
          packets_[b].put(v, row_slot(first + b), col_slot(first + b), team_);
        }
      }
    }
  }

 private:
  static constexpr int kAll = V::kR * (V::kC / F::kStep);  // accesses of this thread
  static constexpr int kMost = kAtOnce < F::kHeld ? 1 : kAtOnce / F::kHeld;
  static constexpr int kBatch = kAll < kMost ? kAll : kMost;

  static STRETTO_DEVICE int row_slot(int at) { return at / (V::kC / F::kStep); }
  static STRETTO_DEVICE int col_slot(int at) { return at % (V::kC / F::kStep) * F::kStep; }

  // Of those who wait together.
  static STRETTO_DEVICE bool of_any(bool mine) {
    return F::kOfWarp ? __any_sync(0xffffffffu, mine) : mine;
  }

  STRETTO_DEVICE void ask(int first) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      int at = first + b;
      packets_[b].clear(tag_, team_);
      if (at >= kAll) continue;
      // A tile of one column has it in every thread of a row.
      i32 r = L::kTileRows == 1 ? 0 : L::row(team_, row_slot(at)),
          c = L::kTileCols == 1 ? 0 : L::col(team_, col_slot(at));
      bool exists = box_.has_row(r);
      if (!row_goes<F>(exists)) continue;
      packets_[b].ask(box_, r, c, team_);
      if (!exists) packets_[b].clear(tag_, team_);
    }
  }

  // Of the batch that was asked for last.
  STRETTO_DEVICE bool complete(u32& seen) const {
    bool all = true;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) all &= packets_[b].came(tag_, seen, team_);
    return all;
  }

  const Box<u64> box_;
  const u32 tag_;
  const Team team_;
  F packets_[kBatch];
};

template <class L, class F, class V>
STRETTO_DEVICE void load_packets(V& v, const Box<u64>& box, u32 tag, const Team& t, const Watch& w,
                                 int site, volatile u32* aborted = nullptr) {
  PacketLoads<L, F, V>(box, tag, t).take(v, w, site, aborted);
}
