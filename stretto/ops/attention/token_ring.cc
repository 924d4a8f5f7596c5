#include <functional>

#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/attention/sequence_tiles.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

// Step 0 works on the own queries, step s = 1 .. P - 1 on those of rank r - s, which lie in slot s;
// what this rank's keys make of them goes to part s of that rank.
class TokenRing {
 public:
  TokenRing(const SequenceAttentionDesc& d, const SequenceAttentionConfig& cfg)
      : d_(d),
        cfg_(cfg),
        world_(d.world_size),
        p_("token_ring", d.world_size),
        tiles_(p_, "token_ring", d, cfg),
        halves_(tiles_.chunks().per_rank()),
        rows_(tiles_.chunks().chunk_rows() * halves_) {
    if (world_ == 1) return;
    BufferOptions symmetric{.space = Space::kSymmetric};
    q_slots_ = p_.buffer("q_slots", d.dtype, {rows_ * (world_ - 1), tiles_.q_cols()}, symmetric);
    auto parts = [&](const char* name, std::int64_t cols) {
      return p_.buffer(name, DType::kF32, {d.num_heads, rows_ * world_, cols}, symmetric);
    };
    sums_ = parts("sums", d.head_dim);
    weights_ = parts("weights", 1);
    peaks_ = parts("peaks", 1);
    ready_ = p_.signal("ready");              // slots may be written
    arrived_ = p_.signal("arrived", world_);  // by step: copies that lie in its slot
    returned_ = p_.signal("returned", world_ * cfg.num_workers);  // by part and worker
  }

  Program run() {
    if (world_ > 1) send();
    // A tile is a worker's share of every step, of the same rows on every rank.
    p_.role("attend", Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages),
            p_.range(cfg_.num_workers), [&](const Tile& t) {
              own_step(t.index);
              if (world_ == 1) return;
              p_.loop(1, world_, [&](const Index& s) { step_of_a_peer(t.index, s); });
              put_together(t.index);
            });
    return p_.finish();
  }

 private:
  using Queries = SequenceTiles::Queries;

  // The own queries to every rank, to the next one first.
  void send() {
    const Chunks& chunks = tiles_.chunks();
    std::int64_t copies = tiles_.num_copies(), per_peer = halves_ * copies;
    p_.on_start([&] {
      p_.loop(world_ - 1, [&](const Index& i) { p_.notify(ready_, (p_.rank() + 1 + i) % world_); });
    });
    p_.role("send", Resource::copy_engine(cfg_.num_queues), p_.range((world_ - 1) * per_peer),
            [&](const Tile& t) {
              Index s = p_.let("step", t.index / per_peer + 1);
              Index peer = p_.let("peer", (p_.rank() + s) % world_);
              Index half = p_.let("half", t.index % per_peer / copies);
              Index first = p_.let("first", half * chunks.chunk_rows());
              Index tokens = chunks.num_tokens(chunks.chunk_of(p_.rank(), half));
              Index row = p_.let("row", first + t.index % copies * cfg_.comm_rows);
              auto part = [&](const TensorRef& tensor, const Index& at) {
                return tensor.tile({at + row, 0}, cfg_.comm_rows, tiles_.q_cols())
                    .until_row(at + first + tokens);
              };
              p_.wait(ready_, peer);
              if_seen(p_.rank(), peer, [&] {
                p_.put(part(q_slots_, (s - 1) * rows_).on(peer), part(tiles_.q(), 0));
              });
              p_.notify(arrived_[s], peer);
            });
  }

  // Tiles w, w + W, ... of worker w, in the rows of `owner`.
  void for_tiles(const Index& worker, const Index& owner,
                 const std::function<void(const Queries&)>& body) {
    std::int64_t workers = cfg_.num_workers;
    p_.loop(ceil_div(tiles_.num_queries() - worker, workers), [&](const Index& i) {
      Queries q = tiles_.queries(worker + i * workers, owner);
      p_.when(q.any(), [&] { body(q); });
    });
  }

  // The own keys.
  void attend(OnlineSoftmax& softmax, const Queries& q, const Value& query) {
    p_.loop(halves_, [&](const Index& half) {
      Index chunk = p_.let("chunk", tiles_.chunks().chunk_of(p_.rank(), half));
      SequenceTiles::Span seen = tiles_.seen(q, chunk);
      tiles_.attend(softmax, query, q,
                    {tiles_.k(), tiles_.v(), half * tiles_.chunks().chunk_rows(), chunk, seen});
    });
  }

  // Whether a tile sees any of a rank's keys: of its two chunks the first has the earlier tokens,
  // which a window may have left behind.
  Index sees(const Queries& q, const Index& rank) const {
    auto sees_half = [&](int half) {
      return tiles_.seen(q, tiles_.chunks().chunk_of(rank, half)).any();
    };
    return tiles_.has_window() && halves_ == 2 ? sees_half(0) || sees_half(1) : sees_half(0);
  }
  // The body where the rank has queries that see keys of the other.
  void if_seen(const Index& rank, const Index& other, const std::function<void()>& body) {
    tiles_.has_window() ? p_.when(tiles_.sees_rank(rank, other), body) : body();
  }

  OnlineSoftmax::State state(const Queries& q, const Index& part, const Index& rank) const {
    auto rows = [&](const TensorRef& tensor, std::int64_t cols) {
      return tensor.tile({q.head, part * rows_ + q.row, 0}, cfg_.tile_rows, cols)
          .until_row(part * rows_ + q.row_end)
          .on(rank);
    };
    return {rows(sums_, d_.head_dim), rows(weights_, 1), rows(peaks_, 1)};
  }

  void own_step(const Index& worker) {
    for_tiles(worker, p_.rank(), [&](const Queries& q) {
      OnlineSoftmax softmax = tiles_.softmax(/*kept=*/true);
      attend(softmax, q, tiles_.load(q));
      world_ > 1 ? softmax.store(state(q, 0, p_.rank())) : tiles_.store(q, softmax);
    });
  }

  void step_of_a_peer(const Index& worker, const Index& s) {
    Index owner = p_.let("owner", (p_.rank() + world_ - s) % world_);
    if_seen(owner, p_.rank(), [&] { p_.wait(arrived_[s], halves_ * tiles_.num_copies()); });
    for_tiles(worker, owner, [&](const Queries& q) {
      p_.when(sees(q, p_.rank()), [&] {
        OnlineSoftmax softmax = tiles_.softmax(/*kept=*/true);
        attend(softmax, q, tiles_.load(q, q_slots_, (s - 1) * rows_));
        softmax.store(state(q, s, owner));
      });
    });
    p_.notify(returned_[s * cfg_.num_workers + worker], owner);
  }

  void put_together(const Index& worker) {
    p_.worker_fence();  // the own part
    p_.loop(1, world_, [&](const Index& s) {
      if_seen(p_.rank(), (p_.rank() + s) % world_,
              [&] { p_.wait(returned_[s * cfg_.num_workers + worker], 1); });
    });
    for_tiles(worker, p_.rank(), [&](const Queries& q) {
      OnlineSoftmax softmax = tiles_.softmax(/*kept=*/true);
      softmax.load(state(q, 0, p_.rank()));
      p_.loop(1, world_, [&](const Index& s) {
        p_.when(sees(q, (p_.rank() + s) % world_),
                [&] { softmax.merge({state(q, s, p_.rank())}); });
      });
      tiles_.store(q, softmax);
    });
  }

  const SequenceAttentionDesc d_;
  const SequenceAttentionConfig cfg_;
  const std::int64_t world_;
  ProgramBuilder p_;
  SequenceTiles tiles_;
  const std::int64_t halves_;
  Index rows_;
  TensorRef q_slots_, sums_, weights_, peaks_;
  SignalRef ready_, arrived_, returned_;
};

}  // namespace

Program token_ring(const SequenceAttentionDesc& d, const SequenceAttentionConfig& cfg) {
  SequenceAttentionConfig will_run = cfg;
  FieldFit::refusing("token_ring " + to_string(d))
      .only("num_slots", will_run.num_slots, 2, "of ring_attention alone");
  return TokenRing(d, cfg).run();
}

}  // namespace stretto
