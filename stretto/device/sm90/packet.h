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

// All loads of a batch are under way before the first tag is looked at. `lost`: raised where a tag
// does not come (device/sm90/signal.h).
template <class L, class T, int kWords, class V>
STRETTO_DEVICE void load_packets(V& v, const Box<u64>& box, u32 tag, const Team& t, const Watch& w,
                                 int site, volatile u32* lost = nullptr) {
  constexpr int kPer = kPerPacket<T>;
  constexpr int kStep = kPer * kWords;
  constexpr int kAll = V::kR * (V::kC / kStep);  // accesses of this thread
  constexpr int kBatch = kAll < kPacketBatch / kWords ? kAll : kPacketBatch / kWords;
#pragma unroll
  for (int first = 0; first < kAll; first += kBatch) {
    u64 words[kBatch][kWords];
    PollClock clock;
    for (bool complete = false; !complete;) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        int at = first + b, i = at / (V::kC / kStep), j = at % (V::kC / kStep) * kStep;
        // A tile of one column has it in every thread of a row.
        i32 r = L::kTileRows == 1 ? 0 : L::row(t, i), c = L::kTileCols == 1 ? 0 : L::col(t, j);
        const u64* from = box.data + r * box.row_stride + c / kPer;
#pragma unroll
        for (int k = 0; k < kWords; ++k) words[b][k] = packet_word(0, tag);
        if (at >= kAll || !box.has_row(r)) continue;
        if constexpr (kWords == 2) {
          if (box.has_cols(c, 2 * kPer)) {
            load_relaxed_sys(words[b], from);
            continue;
          }
        }
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          if (box.has_cols(c + k * kPer, 1)) words[b][k] = load_relaxed_sys(from + k);
        }
      }
      complete = true;
      u32 seen = tag;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int k = 0; k < kWords; ++k) {
          u32 its = u32(words[b][k] >> 32);
          complete &= its == tag;
          if (its != tag) seen = its;
        }
      }
      if (!complete && clock.gives_up(w, site, -1, tag, seen)) {
        complete = true;
        if (lost != nullptr) lose(lost);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      int at = first + b, i = at / (V::kC / kStep), j = at % (V::kC / kStep) * kStep;
      if (at >= kAll) continue;
#pragma unroll
      for (int k = 0; k < kWords; ++k) put_payload<T>(v, i, j + k * kPer, u32(words[b][k]));
    }
  }
}
