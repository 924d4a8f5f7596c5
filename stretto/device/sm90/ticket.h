// Tiles handed out in order to whichever worker is free next: a counter in global memory, from
// which one thread of a worker draws, and a ring of two through which the worker's agents learn the
// tile.
#pragma once

#include "stretto/device/ptx/memory.h"
#include "stretto/device/sm90/layout.h"

// Where the ring lies, and how many tiles this agent has passed on or read.
struct TicketRing {
  u8* at;  // u64 full[2], empty[2]; i32 tiles[2]
  u32 count;
  STRETTO_DEVICE u64* full() const { return reinterpret_cast<u64*>(at) + count % 2; }
  STRETTO_DEVICE u64* empty() const { return reinterpret_cast<u64*>(at) + 2 + count % 2; }
  STRETTO_DEVICE i32& tile() const { return reinterpret_cast<i32*>(at + 32)[count % 2]; }
  STRETTO_DEVICE u32 round() const { return count / 2 % 2; }
};

// By one thread, before the block's first barrier.
STRETTO_DEVICE void ticket_ring_init(u8* at, u32 reader_warps) {
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    TicketRing ring{at, i};
    mbarrier_init(ring.full(), 1);
    mbarrier_init(ring.empty(), reader_warps);
  }
}
// The next tile for this worker; at or past the last there is none, which is passed on as -1.
STRETTO_DEVICE int draw_ticket(u64* counter, int workers) {
  return workers + int(add_relaxed_gpu(counter, 1));
}
STRETTO_DEVICE void publish_ticket(TicketRing& ring, int tile) {
  mbarrier_wait_acquire_cta(ring.empty(), ring.round() ^ 1);
  ring.tile() = tile;
  mbarrier_arrive_release_cta(ring.full());
  ++ring.count;
}
STRETTO_DEVICE int read_ticket(TicketRing& ring, const Team& t) {
  mbarrier_wait_acquire_cta(ring.full(), ring.round());
  int tile = ring.tile();
  __syncwarp();
  if (t.tid % 32 == 0) mbarrier_arrive_release_cta(ring.empty());
  ++ring.count;
  return tile;
}
