// Packet buffers: every 4 bytes of payload lie beside a tag in one 8-byte word, which arrives
// whole. A reader waits for the tag of its launch. As in NCCL's LL protocol, words go in pairs
// where they lie so that 16 bytes are one access.
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

// `box.data` and `row_stride` count words, `rows` and `cols` elements of T. kWords: words that may
// be written at once, 1 or 2, because strides and origin are multiples of it.
template <class L, class T, int kWords, class V>
STRETTO_DEVICE void store_packets(const V& v, const Box<u64>& box, u32 tag, const Team& t) {
  constexpr int kPer = kPerPacket<T>;
  if (L::kTileRows == 1 && !L::stores_cols(t)) return;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = L::kTileRows == 1 ? 0 : L::row(t, i);
#pragma unroll
    for (int j = 0; j < V::kC; j += kPer * kWords) {
      i32 c = L::col(t, j);
      u64* to = box.data + r * box.row_stride + c / kPer;
      u64 words[kWords];
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        bool second = c + k * kPer + 1 < box.cols;
        words[k] = packet_word(packet_payload<T>(v, i, j + k * kPer, second), tag);
      }
      if (!box.has_row(r)) continue;
      if constexpr (kWords == 2) {
        if (box.has_cols(c, 2 * kPer)) {
          store_relaxed_sys(to, words);
          continue;
        }
      }
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if (box.has_cols(c + k * kPer, 1)) store_relaxed_sys(to + k, words[k]);
      }
    }
  }
}

// A tile of packets on its way, `kAtOnce` words of a thread at a time, all of which are asked for
// before the first tag is looked at. Who waits for several tiles asks for all of them before it
// takes the first.
template <class L, class T, int kWords, class V, int kAtOnce = kPacketBatch>
class PacketLoads {
 public:
  STRETTO_DEVICE PacketLoads(const Box<u64>& box, u32 tag, const Team& t)
      : box_(box), tag_(tag), team_(t) {
    ask(0);
  }

  // `lost`: raised where a tag does not come (device/sm90/signal.h).
  STRETTO_DEVICE void take(V& v, const Watch& w, int site, volatile u32* lost = nullptr) {
#pragma unroll
    for (int first = 0; first < kAll; first += kBatch) {
      if (first > 0) ask(first);
      PollClock clock;
      for (u32 seen = tag_; !complete(seen); ask(first)) {
        if (!clock.gives_up(w, site, -1, tag_, seen)) continue;
        if (lost != nullptr) lose(lost);
        break;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        int at = first + b;
        if (at >= kAll) continue;
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          put_payload<T>(v, row_slot(at), col_slot(at) + k * kPer, u32(words_[b][k]));
        }
      }
    }
  }

 private:
  static constexpr int kPer = kPerPacket<T>;
  static constexpr int kStep = kPer * kWords;
  static constexpr int kAll = V::kR * (V::kC / kStep);  // accesses of this thread
  static constexpr int kBatch = kAll < kAtOnce / kWords ? kAll : kAtOnce / kWords;

  static STRETTO_DEVICE int row_slot(int at) { return at / (V::kC / kStep); }
  static STRETTO_DEVICE int col_slot(int at) { return at % (V::kC / kStep) * kStep; }

  STRETTO_DEVICE void ask(int first) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      int at = first + b;
      // A tile of one column has it in every thread of a row.
      i32 r = L::kTileRows == 1 ? 0 : L::row(team_, row_slot(at)),
          c = L::kTileCols == 1 ? 0 : L::col(team_, col_slot(at));
      const u64* from = box_.data + r * box_.row_stride + c / kPer;
#pragma unroll
      for (int k = 0; k < kWords; ++k) words_[b][k] = packet_word(0, tag_);
      if (at >= kAll || !box_.has_row(r)) continue;
      if constexpr (kWords == 2) {
        if (box_.has_cols(c, 2 * kPer)) {
          load_relaxed_sys(words_[b], from);
          continue;
        }
      }
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        if (box_.has_cols(c + k * kPer, 1)) words_[b][k] = load_relaxed_sys(from + k);
      }
    }
  }

  // Of the batch that was asked for last; else `seen` is a tag that is not this launch's.
  STRETTO_DEVICE bool complete(u32& seen) const {
    bool all = true;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        u32 its = u32(words_[b][k] >> 32);
        all &= its == tag_;
        if (its != tag_) seen = its;
      }
    }
    return all;
  }

  const Box<u64> box_;
  const u32 tag_;
  const Team team_;
  u64 words_[kBatch][kWords];
};

template <class L, class T, int kWords, class V>
STRETTO_DEVICE void load_packets(V& v, const Box<u64>& box, u32 tag, const Team& t, const Watch& w,
                                 int site, volatile u32* lost = nullptr) {
  PacketLoads<L, T, kWords, V>(box, tag, t).take(v, w, site, lost);
}
