#include "stretto/ops/attention/sequence_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/ops/attention/attention.h"
#include "stretto/ops/attention/sequence_tiles.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

// Keys and values of all ranks but the own ones, chunk by chunk.
struct Gathered {
  TensorRef k, v;     // [P * rows of a rank, num_kv_heads * head_dim], symmetric
  SignalRef arrived;  // by chunk: copies that lie there
};

// Every rank sends its rows, first to the rank that needs them next, which is the one before it.
// Engines that fetch are slower among four GPUs (docs/performance/attention_ranks.md, 'Why the
// defaults are what they are').
void send(ProgramBuilder& p, const SequenceAttentionConfig& cfg, const SequenceTiles& tiles,
          const Gathered& g) {
  SignalRef ready = p.signal("ready");  // a rank's `full` may be written
  std::int64_t world = p.world_size(), per_peer = tiles.chunks().per_rank() * tiles.num_copies();
  p.on_start([&] {
    p.loop(world - 1, [&](const Index& i) { p.notify(ready, (p.rank() + 1 + i) % world); });
  });
  p.role("send", Resource::copy_engine(cfg.num_queues), p.range((world - 1) * per_peer),
         [&](const Tile& t) {
           Index peer = p.let("peer", (p.rank() + world - 1 - t.index / per_peer) % world);
           Index half = p.let("half", t.index % per_peer / tiles.num_copies());
           Index copy = p.let("copy", t.index % tiles.num_copies());
           Index chunk = p.let("chunk", tiles.chunks().chunk_of(p.rank(), half));
           const Index& rows = tiles.chunks().chunk_rows();
           Index first = copy * cfg.comm_rows, end = tiles.chunks().num_tokens(chunk);
           auto put = [&](const TensorRef& to, const TensorRef& from) {
             auto part = [&](const TensorRef& tensor, const Index& row) {
               return tensor.tile({row + first, 0}, cfg.comm_rows, tiles.kv_cols())
                   .until_row(row + end);
             };
             p.put(part(to, chunk * rows).on(peer), part(from, half * rows));
           };
           auto put_both = [&] { put(g.k, tiles.k()), put(g.v, tiles.v()); };
           p.wait(ready, peer);
           tiles.has_window() ? p.when(tiles.sees_chunk(peer, chunk), put_both) : put_both();
           p.notify(g.arrived[chunk], peer);
         });
  // What no row of this rank sees arrives, too, and must not do so in a later launch.
  p.on_end([&] {
    const std::int64_t halves = tiles.chunks().per_rank();
    p.loop(halves, halves * world, [&](const Index& i) {
      Index chunk = tiles.chunks().chunk_of((p.rank() + i / halves) % world, i % halves);
      p.wait(g.arrived[chunk], tiles.num_copies());
    });
  });
}

}  // namespace

Program sequence_attention(const SequenceAttentionDesc& d, const SequenceAttentionConfig& cfg) {
  SequenceAttentionConfig will_run = cfg;
  FieldFit::refusing("sequence_attention " + to_string(d))
      .only("num_slots", will_run.num_slots, 2, "of ring_attention alone");
  ProgramBuilder p("sequence_attention", d.world_size);
  SequenceTiles tiles(p, "sequence_attention", d, cfg);
  const Chunks& chunks = tiles.chunks();
  const std::int64_t halves = chunks.per_rank();
  Gathered g;
  bool alone = d.world_size == 1;
  if (!alone) {
    Index rows = chunks.chunk_rows() * (halves * d.world_size);
    BufferOptions symmetric{.space = Space::kSymmetric};
    g.k = p.buffer("k_full", d.dtype, {rows, tiles.kv_cols()}, symmetric);
    g.v = p.buffer("v_full", d.dtype, {rows, tiles.kv_cols()}, symmetric);
    g.arrived = p.signal("arrived", halves * d.world_size);
    send(p, cfg, tiles, g);
  }
  p.role("attend", Resource::sms(cfg.num_workers).pipelined(cfg.num_stages),
         p.range(tiles.num_queries()), [&](const Tile& t) {
           SequenceTiles::Queries q = tiles.queries(t.index);
           p.when(q.any(), [&] {
             Value query = tiles.load(q);
             OnlineSoftmax softmax = tiles.softmax(/*kept=*/false);
             // One loop over own keys and others', of which a GPU's compiler makes one.
             p.loop(halves * d.world_size, [&](const Index& i) {
               Index owner = p.let("owner", (p.rank() + i / halves) % d.world_size);
               Index chunk = p.let("chunk", chunks.chunk_of(owner, i % halves));
               SequenceTiles::Span seen = tiles.seen(q, chunk);
               Index own = i < halves;
               Index row = select(own, i, chunk) * chunks.chunk_rows();
               auto add = [&](const TensorRef& k, const TensorRef& v) {
                 tiles.attend(softmax, query, q, {k, v, row, chunk, seen});
               };
               auto add_own = [&] { add(tiles.k(), tiles.v()); };
               auto add_arrived = [&] {
                 p.wait(g.arrived[chunk], tiles.num_copies());
                 add(g.k, g.v);
               };
               p.when(seen.any(), [&] { alone ? add_own() : p.when(own, add_own, add_arrived); });
             });
             tiles.store(q, softmax);
           });
         });
  return p.finish();
}

NamedFields fields_of(SequenceAttentionDesc& d) {
  return {{"m", d.m},
          {"num_heads", d.num_heads},
          {"num_kv_heads", d.num_kv_heads},
          {"head_dim", d.head_dim},
          {"window", d.window, 0},
          NamedField("causal", d.causal).unless_set("full"),
          {"contiguous", d.contiguous},
          {"lse", d.lse},
          {"scale", d.scale},
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("world_size", d.world_size).as("P={}")};
}

NamedFields fields_of(SequenceAttentionConfig& c) {
  return {{"tile", {&c.tile_rows, &c.tile_kv}},
          {"comm_rows", c.comm_rows},
          {"workers", c.num_workers},
          {"queues", c.num_queues},
          {"slots", c.num_slots},
          {"stages", c.num_stages, 0},
          {"head_group", c.head_group, 0}};
}

}  // namespace stretto
