// Packet buffers: every 4 bytes of payload lie beside a tag in one 8-byte word, which arrives
// whole. A reader waits for the tag of its launch.
#pragma once

#include "stretto/device/sm90/global.h"
#include "stretto/device/sm90/signal.h"

template <class T>
constexpr int kPerPacket = 4 / int(sizeof(T));

// `box.data` and `row_stride` count words, `rows` and `cols` elements of T.
template <class L, class T, class V>
STRETTO_DEVICE void store_packets(const V& v, const Box<u64>& box, u32 tag, const Team& t) {
  constexpr int kPer = kPerPacket<T>;
  if (L::kTileRows == 1 && !L::stores_cols(t)) return;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = L::kTileRows == 1 ? 0 : L::row(t, i);
#pragma unroll
    for (int j = 0; j < V::kC; j += kPer) {
      i32 c = L::col(t, j);
      if (!box.has_row(r) || !box.has_cols(c, 1)) continue;
      u32 payload;
      if constexpr (kPer == 1) {
        payload = __float_as_uint(to_float(v.at(i, j)));
      } else {
        payload = pack2<T>(to_float(v.at(i, j)), c + 1 < box.cols ? to_float(v.at(i, j + 1)) : 0.f);
      }
      store_packet_relaxed_sys(box.data + r * box.row_stride + c / kPer, payload, tag);
    }
  }
}

template <class L, class T, class V>
STRETTO_DEVICE void load_packets(V& v, const Box<u64>& box, u32 tag, const Team& t, const Watch& w,
                                 int site) {
  constexpr int kPer = kPerPacket<T>;
#pragma unroll
  for (int i = 0; i < V::kR; ++i) {
    i32 r = L::kTileRows == 1 ? 0 : L::row(t, i);
#pragma unroll
    for (int j = 0; j < V::kC; j += kPer) {
      i32 c = L::col(t, j);
      u32 payload = 0;
      if (box.has_row(r) && box.has_cols(c, 1)) {
        payload = wait_packet(box.data + r * box.row_stride + c / kPer, tag, w, site);
      }
      if constexpr (kPer == 1) {
        v.put(i, j, __uint_as_float(payload));
      } else {
        T e[2] = {T{u16(payload & 0xffff)}, T{u16(payload >> 16)}};
        put_raw(v, i, j, e);
      }
    }
  }
}
