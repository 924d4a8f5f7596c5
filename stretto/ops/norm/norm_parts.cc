#include "stretto/ops/norm/norm_parts.h"

#include "stretto/ops/operator/rank_sum.h"

namespace stretto {

Value normalise(const RowNorm& n, const Value& x, const Value& weight) {
  Value v = cast(x, sum_dtype(n.dtype));
  return normalise_with(n, v, weight, row_sum(v * v) / static_cast<double>(n.hidden));
}

Value normalise_with(const RowNorm& n, const Value& v, const Value& weight,
                     const Value& mean_square) {
  DType wide = sum_dtype(n.dtype);
  Value normed = cast(v * rsqrt(mean_square + n.eps), n.dtype);
  return cast(cast(normed, wide) * cast(weight, wide), n.dtype);
}

void store_normalised(ProgramBuilder& p, const RowNorm& n, const SummedRows& rows) {
  DType wide = sum_dtype(n.dtype);
  Value v = cast(cast(rows.reduced, wide) + cast(rows.residual, wide), n.dtype);
  p.store(rows.sum, v);
  p.store(rows.out, normalise(n, v, rows.weight()));
}

PeerReads::PeerReads(ProgramBuilder& p)
    : p_(p), ready_(p.signal("ready")), done_(p.signal("done")) {
  p.on_start([&] { p.notify_all(ready_); });
}

void PeerReads::wait_at_end(const Index& num_tiles) const {
  p_.on_end(
      [&] { p_.loop(p_.world_size(), [&](const Index& i) { p_.wait(done_[i], num_tiles); }); });
}

Program finish_with_threads(ProgramBuilder& p, int threads) {
  Program program = p.finish();
  program.roles[0].agents[0].num_threads = threads;
  return program;
}

PacketSums::PacketSums(ProgramBuilder& p, const PacketSumsOf& of, const Index& rows)
    : p_(p),
      rows_(of.tile_rows),
      width_(of.width),
      two_shot_(of.two_shot),
      // Threads that are so many have 64 registers each.
      together_(p.world_size() <= 4 || of.threads <= 512),
      end_(max(rows, 1)) {
  BufferOptions where{.space = Space::kSymmetric, .num_slots = 2, .packet = true};
  inbox_ = p.buffer("inbox", of.dtype, {p.world_size(), of.most_rows, width_}, where);
  if (two_shot_) sums_ = p.buffer("sums", of.dtype, {of.most_rows, width_}, where);
}

Value PacketSums::of(const Tile& t, const Value& mine,
                     const std::function<void()>& meanwhile) const {
  int world = p_.world_size();
  if (!two_shot_) {
    to_peers([&](const Index& peer) { p_.store_packet(part(t, p_.rank()).on(peer), mine); });
    meanwhile();
    return in_rank_order(t, mine);
  }
  Index owner = p_.let("owner", t.m % world);
  p_.when(owner != p_.rank(), [&] { p_.store_packet(part(t, p_.rank()).on(owner), mine); });
  meanwhile();
  Value reduced = p_.zeros(mine.dtype(), rows_, width_);
  Slice sum = sums_.tile({t.row, 0}, rows_, width_).until_row(end_);
  p_.when(
      owner == p_.rank(),
      [&] {
        reduced = in_rank_order(t, mine);
        to_peers([&](const Index& peer) { p_.store_packet(sum.on(peer), reduced); });
      },
      [&] { reduced = p_.load_packet(sum); });
  return reduced;
}

void PacketSums::send(const Tile& t, const std::function<Value(const Index& peer)>& part_of) const {
  to_peers([&](const Index& peer) { p_.store_packet(part(t, p_.rank()).on(peer), part_of(peer)); });
}

void PacketSums::to_peers(const std::function<void(const Index& peer)>& send) const {
  int world = p_.world_size();
  p_.loop(world - 1, [&](const Index& i) { send((p_.rank() + 1 + i) % world); });
}

Slice PacketSums::part(const Tile& t, const Index& source) const {
  return inbox_.tile({source, t.row, 0}, rows_, width_).until_row(end_);
}

Value PacketSums::in_rank_order(const Tile& t, const Value& mine) const {
  auto part_of = [&](const Index& r) { return p_.load_packet(part(t, r)); };
  Value total = sum_with_own(p_, mine, part_of, together_);
  return cast(total, mine.dtype());
}

}  // namespace stretto
