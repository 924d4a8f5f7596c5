// What the normalisations share: the arithmetic of a row, and sums over ranks that travel as
// packets.
#pragma once

#include <cstdint>
#include <functional>

#include "stretto/lang/program_builder.h"

namespace stretto {

struct RowNorm {
  DType dtype = DType::kF32;  // of what is normalised
  std::int64_t hidden = 1;    // columns
  double eps = 0;
};

// x [rows, hidden], weight [1, hidden] -> x / rms(x) * weight
Value normalise(const RowNorm& n, const Value& x, const Value& weight);
// The same of x as it is summed, where the mean of its squares is known.
Value normalise_with(const RowNorm& n, const Value& v, const Value& weight,
                     const Value& mean_square);

// The end of a row's way: sum = what was reduced + residual, of the element type; out = that over
// its rms, times weight. `weight` is loaded after `sum` is stored where it is not there yet.
struct SummedRows {
  Value reduced, residual;
  std::function<Value()> weight;
  Slice sum, out;
};
void store_normalised(ProgramBuilder& p, const RowNorm& n, const SummedRows& rows);

// For sums over ranks that are read from peers: each tells all others that its rows may be read,
// and in the end waits until all have read them.
class PeerReads {
 public:
  explicit PeerReads(ProgramBuilder& p);
  const SignalRef& ready() const { return ready_; }   // of a rank: they may be read
  void notify_done() const { p_.notify_all(done_); }  // once a tile
  void wait_at_end(const Index& num_tiles) const;

 private:
  ProgramBuilder& p_;
  SignalRef ready_, done_;
};

// Its only role has so many threads a worker; 0: as many as its values take.
Program finish_with_threads(ProgramBuilder& p, int threads);

struct PacketSumsOf {
  DType dtype = DType::kF32;
  std::int64_t most_rows = 1, width = 1;  // of what is summed
  std::int64_t tile_rows = 1;
  bool two_shot = false;  // as in NormConfig
  int threads = 0;
};

// The sums over ranks of tiles as packets. Two slots are enough, since a rank that writes slot
// e % 2 again has heard in the launch between from rank 0, which owns the first tile and had then
// heard from all, or, one-shot, from every rank: there is always one row, even without rows.
class PacketSums {
 public:
  PacketSums(ProgramBuilder& p, const PacketSumsOf& of, const Index& rows);

  // Of what this rank has of the tile; `meanwhile` is loaded while the others' travels.
  Value of(const Tile& t, const Value& mine, const std::function<void()>& meanwhile) const;

  // One-shot, in two steps. What peers are given may differ from peer to peer.
  void send(const Tile& t, const std::function<Value(const Index& peer)>& part) const;
  Value received(const Tile& t, const Value& mine) const { return in_rank_order(t, mine); }

 private:
  void to_peers(const std::function<void(const Index& peer)>& send) const;
  Slice part(const Tile& t, const Index& source) const;
  Value in_rank_order(const Tile& t, const Value& mine) const;

  ProgramBuilder& p_;
  std::int64_t rows_, width_;
  bool two_shot_, together_;
  Index end_;
  TensorRef inbox_, sums_;
};

}  // namespace stretto
