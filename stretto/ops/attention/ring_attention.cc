#include <algorithm>
#include <functional>

#include "stretto/ops/attention/attention_check.h"
#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/attention/sequence_tiles.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

// Of a row that the lanes of one warp hold.
constexpr std::int64_t kMostWarpBytes = 512;

// Part 0 is the own keys and values, part s = 1 .. P - 1 those of rank r - s, which lie in slot
// (s - 1) % num_slots. Where each has a slot of its own, a tile of queries goes through all parts
// and is stored (one pass). Otherwise all tiles go through a part before the first goes through the
// next one (step by step).
class RingAttention {
 public:
  RingAttention(const SequenceAttentionDesc& d, const SequenceAttentionConfig& cfg)
      : d_(d),
        cfg_(cfg),
        steps_(d.world_size),
        p_("ring_attention", d.world_size),
        tiles_(p_, "ring_attention", d, cfg),
        next_((p_.rank() + 1) % steps_),
        previous_((p_.rank() + steps_ - 1) % steps_),
        halves_(tiles_.chunks().per_rank()),
        rows_(tiles_.chunks().chunk_rows() * halves_),
        num_slots_(std::min<std::int64_t>(cfg.num_slots, steps_ - 1)) {
    if (steps_ == 1) return;
    BufferOptions symmetric{.space = Space::kSymmetric};
    k_slots_ = p_.buffer("k_slots", d.dtype, {rows_ * num_slots_, tiles_.kv_cols()}, symmetric);
    v_slots_ = p_.buffer("v_slots", d.dtype, {rows_ * num_slots_, tiles_.kv_cols()}, symmetric);
    // By chunk of the parts: copies that lie there.
    arrived_ = p_.signal("arrived", halves_ * steps_);
    ready_ = p_.signal("ready");  // slots at `next` may be written
    if (one_pass()) return;
    sums_ = p_.buffer("sums", DType::kF32, {d.num_heads, rows_, d.head_dim});
    weights_ = p_.buffer("weights", DType::kF32, {d.num_heads, rows_, 1});
    peaks_ = p_.buffer("peaks", DType::kF32, {d.num_heads, rows_, 1});
    // By step: its slot at `next` has been read, by the workers and by the copies.
    used_ = p_.signal("used", steps_);
    passed_ = p_.signal("passed", steps_);
  }

  Program run() {
    if (steps_ > 1) send();
    Resource sms = Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages);
    if (one_pass()) {
      p_.role("attend", sms, p_.range(tiles_.num_queries()),
              [&](const Tile& t) { all_parts(tiles_.queries(t.index)); });
    } else {
      p_.role("attend", sms, p_.range(cfg_.num_workers), [&](const Tile& t) {
        first_step(t.index);
        p_.loop(1, steps_, [&](const Index& s) { later_step(t.index, s); });
      });
    }
    return p_.finish();
  }

 private:
  using Queries = SequenceTiles::Queries;

  Index owner(const Index& part) const { return (p_.rank() + steps_ - part) % steps_; }
  bool one_pass() const { return num_slots_ == steps_ - 1; }
  // The first row of a part's slot.
  Index slot(const Index& part) const { return (part - 1) % num_slots_ * rows_; }

  // Hands the own part, then what arrived of each part but the last, to the next rank. Its slots
  // are free for the first num_slots of them, and for a later one when its workers and its copies
  // have read what lay there.
  void send() {
    const Chunks& chunks = tiles_.chunks();
    std::int64_t copies = tiles_.num_copies(), per_step = halves_ * copies;
    p_.on_start([&] { p_.notify(ready_, previous_); });
    p_.role("send", Resource::copy_engine(1), p_.range((steps_ - 1) * per_step),
            [&](const Tile& t) {
              Index s = p_.let("step", t.index / per_step + 1);
              Index chunk = p_.let("chunk", t.index / copies);  // of the parts of this rank
              Index half = p_.let("half", t.index % per_step / copies);
              Index first = p_.let("first", half * chunks.chunk_rows());
              Index tokens = chunks.num_tokens(chunks.chunk_of(owner(s - 1), half));
              Index row = p_.let("row", first + t.index % copies * cfg_.comm_rows);
              auto part = [&](const TensorRef& tensor, const Index& at) {
                return tensor.tile({at + row, 0}, cfg_.comm_rows, tiles_.kv_cols())
                    .until_row(at + first + tokens);
              };
              auto send_from = [&](const TensorRef& k, const TensorRef& v, const Index& at) {
                p_.put(part(k_slots_, slot(s)).on(next_), part(k, at));
                p_.put(part(v_slots_, slot(s)).on(next_), part(v, at));
              };
              p_.wait(ready_, next_);
              if (!one_pass()) {
                p_.when(s > num_slots_, [&] {
                  p_.wait(used_[s], cfg_.num_workers);
                  p_.wait(passed_[s], 1);
                });
              }
              auto send_own = [&] { send_from(tiles_.k(), tiles_.v(), 0); };
              auto pass_on = [&] {
                p_.wait(arrived_[chunk], copies);
                send_from(k_slots_, v_slots_, slot(s - 1));
              };
              steps_ > 2 ? p_.when(s == 1, send_own, pass_on) : send_own();
              p_.notify(arrived_[chunk + halves_], next_);
              if (one_pass()) return;
              Index last_copy = t.index % per_step == per_step - 1;
              Index into = s - 1 + num_slots_;  // the part that comes where this copy has read
              p_.when(last_copy && s > 1 && into < steps_,
                      [&] { p_.notify(passed_[into], previous_); });
            });
  }

  // Tiles w, w + W, ... of worker w, the same in every step.
  void for_tiles(const Index& worker, const std::function<void(const Queries&)>& body) {
    std::int64_t workers = cfg_.num_workers;
    p_.loop(ceil_div(tiles_.num_queries() - worker, workers), [&](const Index& i) {
      Queries q = tiles_.queries(worker + i * workers);
      p_.when(q.any(), [&] { body(q); });
    });
  }

  // Adds both chunks of an owner, whose rows begin at `row` of the tensors.
  void attend(OnlineSoftmax& softmax, const Value& query, const Queries& q, const Index& owner,
              const TensorRef& k, const TensorRef& v, const Index& row) {
    p_.loop(halves_, [&](const Index& half) {
      Index chunk = p_.let("chunk", tiles_.chunks().chunk_of(owner, half));
      SequenceTiles::Span seen = tiles_.seen(q, chunk);
      tiles_.attend(softmax, query, q,
                    {k, v, row + half * tiles_.chunks().chunk_rows(), chunk, seen});
    });
  }

  // What no row of a tile sees may come later, here and below: who sends it sends the next launch's
  // after it. Parts from here and from others are one loop, of which a GPU's compiler makes one.
  void all_parts(const Queries& q) {
    auto add_chunk = [&](OnlineSoftmax& softmax, const Value& query, const Index& i) {
      Index from = p_.let("owner", owner(i / halves_));
      Index chunk = p_.let("chunk", tiles_.chunks().chunk_of(from, i % halves_));
      SequenceTiles::Span seen = tiles_.seen(q, chunk);
      Index own = i < halves_;
      Index row = select(own, i, i - halves_) * tiles_.chunks().chunk_rows();
      auto add = [&](const TensorRef& k, const TensorRef& v) {
        tiles_.attend(softmax, query, q, {k, v, row, chunk, seen});
      };
      auto add_own = [&] { add(tiles_.k(), tiles_.v()); };
      auto add_arrived = [&] {
        p_.wait(arrived_[i], tiles_.num_copies());
        add(k_slots_, v_slots_);
      };
      p_.when(seen.any(), [&] { steps_ > 1 ? p_.when(own, add_own, add_arrived) : add_own(); });
    };
    p_.when(q.any(), [&] {
      Value query = tiles_.load(q);
      OnlineSoftmax softmax = tiles_.softmax(/*kept=*/false);
      p_.loop(halves_ * steps_, [&](const Index& i) { add_chunk(softmax, query, i); });
      tiles_.store(q, softmax);
    });
  }

  OnlineSoftmax::State state(const Queries& q) const {
    return {tiles_.rows_of(sums_, q, d_.head_dim), tiles_.rows_of(weights_, q, 1),
            tiles_.rows_of(peaks_, q, 1)};
  }

  void first_step(const Index& worker) {
    for_tiles(worker, [&](const Queries& q) {
      OnlineSoftmax softmax = tiles_.softmax(/*kept=*/true);
      attend(softmax, tiles_.load(q), q, p_.rank(), tiles_.k(), tiles_.v(), 0);
      softmax.store(state(q));
    });
  }

  void later_step(const Index& worker, const Index& s) {
    Index from = p_.let("owner", owner(s));
    Index last = p_.let("last", s == steps_ - 1);
    p_.worker_fence();  // the sums of the step before
    auto wait = [&] {   // its last chunk
      p_.wait(arrived_[s * halves_ + (halves_ - 1)], tiles_.num_copies());
    };
    bool window = tiles_.has_window();
    Index needed = window ? p_.let("needed", tiles_.sees_rank(p_.rank(), from)) : Index(1);
    window ? p_.when(needed, wait) : wait();
    auto add = [&](const Queries& q) {
      OnlineSoftmax softmax = tiles_.softmax(/*kept=*/true);
      softmax.load(state(q));
      attend(softmax, tiles_.load(q), q, from, k_slots_, v_slots_, slot(s));
      // A row, or a sum of rows that take more lanes than a warp has, is copied in several warps,
      // all of which have to have read theirs.
      const auto row_bytes = d_.head_dim * static_cast<std::int64_t>(size_bytes(d_.dtype));
      const bool copied = cfg_.tile_rows == 1 || row_bytes > kMostWarpBytes;
      auto keep = [&] {
        if (copied) p_.worker_fence();
        softmax.store(state(q));
      };
      p_.when(
          last, [&] { tiles_.store(q, softmax); }, keep);
    };
    for_tiles(worker, [&](const Queries& q) {
      window ? p_.when(needed || last, [&] { add(q); }) : add(q);
    });
    p_.when(s + num_slots_ < steps_, [&] { p_.notify(used_[s + num_slots_], previous_); });
  }

  const SequenceAttentionDesc d_;
  const SequenceAttentionConfig cfg_;
  const std::int64_t steps_;
  ProgramBuilder p_;
  SequenceTiles tiles_;
  Index next_, previous_;
  const std::int64_t halves_;
  Index rows_;
  const std::int64_t num_slots_;
  TensorRef k_slots_, v_slots_, sums_, weights_, peaks_;
  SignalRef arrived_, ready_, used_, passed_;
};

}  // namespace

Program ring_attention(const SequenceAttentionDesc& d, const SequenceAttentionConfig& cfg) {
  SequenceAttentionConfig will_run = cfg;
  FieldFit::refusing("ring_attention " + to_string(d))
      .only("num_queues", will_run.num_queues, 1, "one queue passes on what the one before sent");
  FieldCheck need{"ring_attention"};
  need(cfg.num_slots >= 1, "num_slots", cfg.num_slots, "at least 1");
  // With one, each rank would wait for the next to pass on what lies where its own is to go.
  need(cfg.num_slots >= 2 || d.world_size <= 2, "num_slots", cfg.num_slots,
       "at least 2 where there are more than two ranks");
  return RingAttention(d, cfg).run();
}

}  // namespace stretto
