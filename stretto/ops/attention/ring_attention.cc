#include <algorithm>
#include <functional>

#include "stretto/ops/attention/sequence_attention.h"
#include "stretto/ops/attention/sequence_tiles.h"
#include "stretto/ops/harness/field_fit.h"

namespace stretto {
namespace {

// Of a row that the lanes of one warp hold.
constexpr std::int64_t kMostWarpBytes = 512;

// Step 0 works on the own keys and values, step s = 1 .. P - 1 on those of rank r - s, which lie in
// slot (s - 1) % 2.
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
        rows_(tiles_.zigzag().chunk_rows() * 2) {
    if (steps_ == 1) return;
    BufferOptions symmetric{.space = Space::kSymmetric};
    k_slots_ = p_.buffer("k_slots", d.dtype, {rows_ * 2, tiles_.kv_cols()}, symmetric);
    v_slots_ = p_.buffer("v_slots", d.dtype, {rows_ * 2, tiles_.kv_cols()}, symmetric);
    sums_ = p_.buffer("sums", DType::kF32, {d.num_heads, rows_, d.head_dim});
    weights_ = p_.buffer("weights", DType::kF32, {d.num_heads, rows_, 1});
    peaks_ = p_.buffer("peaks", DType::kF32, {d.num_heads, rows_, 1});
    arrived_ = p_.signal("arrived", steps_);  // by step: copies that lie in its slot
    // By step: its slot at `next` has been read, by the workers and by the copies.
    ready_ = p_.signal("ready");
    if (!reuses_slots()) return;
    used_ = p_.signal("used", steps_);
    passed_ = p_.signal("passed", steps_);
  }

  Program run() {
    if (steps_ > 1) send();
    p_.role("attend", Resource::sms(cfg_.num_workers).pipelined(cfg_.num_stages),
            p_.range(cfg_.num_workers), [&](const Tile& t) {
              first_step(t.index);
              if (steps_ > 1) p_.loop(1, steps_, [&](const Index& s) { later_step(t.index, s); });
            });
    return p_.finish();
  }

 private:
  using Queries = SequenceTiles::Queries;

  Index owner(const Index& step) const { return (p_.rank() + steps_ - step) % steps_; }
  bool reuses_slots() const { return steps_ > 3; }
  // The first row of a step's slot.
  Index slot(const Index& step) const { return (step - 1) % 2 * rows_; }

  // Hands the own part, then what arrived at each step but the last, to the next rank. Its slots
  // are free for the first two steps, and for a later one when its workers and its copies have read
  // what came two steps before.
  void send() {
    const Zigzag& zigzag = tiles_.zigzag();
    std::int64_t copies = tiles_.num_copies(), per_step = 2 * copies;
    p_.on_start([&] { p_.notify(ready_, previous_); });
    p_.role("send", Resource::copy_engine(1), p_.range((steps_ - 1) * per_step),
            [&](const Tile& t) {
              Index s = p_.let("step", t.index / per_step + 1);
              Index half = p_.let("half", t.index % per_step / copies);
              Index first = p_.let("first", half * zigzag.chunk_rows());
              Index tokens = zigzag.num_tokens(zigzag.chunk_of(owner(s - 1), half));
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
              if (reuses_slots()) {
                p_.when(s > 2, [&] {
                  p_.wait(used_[s], cfg_.num_workers);
                  p_.wait(passed_[s], 1);
                });
              }
              auto send_own = [&] { send_from(tiles_.k(), tiles_.v(), 0); };
              auto pass_on = [&] {
                p_.wait(arrived_[s - 1], per_step);
                send_from(k_slots_, v_slots_, slot(s - 1));
              };
              steps_ > 2 ? p_.when(s == 1, send_own, pass_on) : send_own();
              p_.notify(arrived_[s], next_);
              if (reuses_slots()) {
                Index last_copy = t.index % per_step == per_step - 1;
                p_.when(last_copy && s > 1 && s < steps_ - 1,
                        [&] { p_.notify(passed_[s + 1], previous_); });
              }
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
  void attend(OnlineSoftmax& softmax, const Queries& q, const Index& owner, const TensorRef& k,
              const TensorRef& v, const Index& row) {
    Value query = tiles_.load(q);
    p_.loop(2, [&](const Index& half) {
      Index chunk = p_.let("chunk", tiles_.zigzag().chunk_of(owner, half));
      SequenceTiles::Span seen = tiles_.seen(q, chunk);
      tiles_.attend(softmax, query, q,
                    {k, v, row + half * tiles_.zigzag().chunk_rows(), chunk, seen});
    });
  }

  OnlineSoftmax::State state(const Queries& q) const {
    return {tiles_.rows_of(sums_, q, d_.head_dim), tiles_.rows_of(weights_, q, 1),
            tiles_.rows_of(peaks_, q, 1)};
  }

  void first_step(const Index& worker) {
    for_tiles(worker, [&](const Queries& q) {
      OnlineSoftmax softmax = tiles_.softmax(/*kept=*/true);
      attend(softmax, q, p_.rank(), tiles_.k(), tiles_.v(), 0);
      steps_ > 1 ? softmax.store(state(q)) : tiles_.store(q, softmax);
    });
  }

  void later_step(const Index& worker, const Index& s) {
    Index from = p_.let("owner", owner(s));
    Index last = p_.let("last", s == steps_ - 1);
    p_.worker_fence();  // the sums of the step before
    // What no row of this rank sees may come later: who sends it sends the next launch's after it.
    auto wait = [&] { p_.wait(arrived_[s], 2 * tiles_.num_copies()); };
    bool window = tiles_.has_window();
    Index needed = window ? p_.let("needed", tiles_.sees_rank(p_.rank(), from)) : Index(1);
    window ? p_.when(needed, wait) : wait();
    auto add = [&](const Queries& q) {
      OnlineSoftmax softmax = tiles_.softmax(/*kept=*/true);
      softmax.load(state(q));
      attend(softmax, q, from, k_slots_, v_slots_, slot(s));
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
    if (!reuses_slots()) return;
    p_.when(s + 2 < steps_, [&] { p_.notify(used_[s + 2], previous_); });
  }

  const SequenceAttentionDesc d_;
  const SequenceAttentionConfig cfg_;
  const std::int64_t steps_;
  ProgramBuilder p_;
  SequenceTiles tiles_;
  Index next_, previous_, rows_;
  TensorRef k_slots_, v_slots_, sums_, weights_, peaks_;
  SignalRef arrived_, ready_, used_, passed_;
};

}  // namespace

SequenceAttentionConfig default_ring_config(const SequenceAttentionDesc& d, Target target) {
  SequenceAttentionConfig c = default_config(d, target);
  c.num_queues = 1;
  // On a GPU the loop over steps needs registers of its own, more where ranks take turns round a
  // ring of three and more, and a block waits for what the queue waits for.
  if (target == Target::kCuda) {
    c.tile_kv = std::min<std::int64_t>(c.tile_kv, d.world_size > 2 ? 80 : 96);
    c.head_group = heads_in_l2(d, ceil_div(d.m, std::int64_t{d.world_size}));
  }
  c.num_workers = std::min(c.num_workers, kGpuSms - 1);
  return c;
}

Program ring_attention(const SequenceAttentionDesc& d, const SequenceAttentionConfig& cfg) {
  SequenceAttentionConfig will_run = cfg;
  FieldFit::refusing("ring_attention " + to_string(d))
      .only("num_queues", will_run.num_queues, 1, "one queue passes on what the one before sent");
  return RingAttention(d, cfg).run();
}

}  // namespace stretto
