#include "stretto/ops/attention/sequence_tiles.h"

#include "stretto/ops/attention/attention_check.h"

namespace stretto {
namespace {

void check(const char* op, const SequenceAttentionDesc& d, const SequenceAttentionConfig& c) {
  FieldCheck need{op};
  need.not_double("dtype", d.dtype);
  need.at_least_one({{"m", d.m}});
  need.heads(d.num_heads, d.num_kv_heads);
  need.at_least_one({{"head_dim", d.head_dim},
                     {"world_size", d.world_size},
                     {"tile_rows", c.tile_rows},
                     {"tile_kv", c.tile_kv},
                     {"comm_rows", c.comm_rows},
                     {"num_workers", c.num_workers},
                     {"num_queues", c.num_queues}});
  need(d.window >= 0, "window", d.window, "0 or more");
  need.finite("scale", d.scale);
  need(d.causal || d.window == 0, "window", d.window, "0 where attention is not causal");
  need(c.head_group >= 0 && (c.head_group == 0 || d.num_heads % c.head_group == 0), "head_group",
       c.head_group, "a divisor of num_heads");
}

Index extent(ProgramBuilder& p, const char* op, const SequenceAttentionDesc& d,
             const SequenceAttentionConfig& cfg) {
  check(op, d, cfg);
  return p.extent("m", d.m);
}

}  // namespace

Chunks::Chunks(const Index& m, const SequenceAttentionDesc& d)
    : m_(m),
      chunk_rows_(ceil_div(m, chunks_per_rank(d) * d.world_size)),
      world_size_(d.world_size),
      per_rank_(chunks_per_rank(d)),
      most_chunk_rows_(ceil_div(d.m, per_rank_ * d.world_size)) {}

Index Chunks::chunk_of(const Index& owner, const Index& half) const {
  if (per_rank_ == 1) return owner;
  return owner + half * (2 * world_size_ - 1 - 2 * owner);
}

Index Chunks::num_tokens(const Index& chunk) const {
  return max(min(m_ - first_token(chunk), chunk_rows_), 0);
}

SequenceTiles::SequenceTiles(ProgramBuilder& p, const char* op, const SequenceAttentionDesc& d,
                             const SequenceAttentionConfig& cfg)
    : p_(p),
      d_(d),
      cfg_(cfg),
      chunks_(extent(p, op, d, cfg), d),
      row_tiles_(ceil_div(chunks_.most_chunk_rows(), cfg.tile_rows)),
      num_copies_(ceil_div(chunks_.most_chunk_rows(), cfg.comm_rows)) {
  Index rows = chunks_.chunk_rows() * chunks_.per_rank();
  q_ = p.input("q", d.dtype, {rows, d.num_heads * d.head_dim});
  k_ = p.input("k", d.dtype, {rows, kv_cols()});
  v_ = p.input("v", d.dtype, {rows, kv_cols()});
  out_ = p.output("out", d.dtype, {rows, d.num_heads * d.head_dim});
  if (d.lse) lse_ = p.output("lse", DType::kF32, {d.num_heads, rows});
}

SequenceTiles::Queries SequenceTiles::queries(const Index& tile, const Index& owner) const {
  std::int64_t group = cfg_.head_group > 0 ? cfg_.head_group : d_.num_heads;
  std::int64_t per_group = chunks_.per_rank() * row_tiles_ * group;
  bool one_group = group == d_.num_heads;
  Index in_group = one_group ? tile : p_.let("in_group", tile % per_group);
  Index from_end = p_.let("from_end", in_group / group);  // of the rank's tiles of rows
  Index half = chunks_.per_rank() == 1 ? Index(0) : p_.let("half", 1 - from_end / row_tiles_);
  Index local = p_.let("local", (row_tiles_ - 1 - from_end % row_tiles_) * cfg_.tile_rows);
  Index chunk = p_.let("chunk", chunks_.chunk_of(owner, half));
  const Index& rows = chunks_.chunk_rows();
  Queries q;
  Index first_head = one_group ? Index(0) : tile / per_group * group;
  q.head = p_.let("head", first_head + in_group % group);
  q.kv_head = p_.let("kv_head", q.head / (d_.num_heads / d_.num_kv_heads));
  q.row = p_.let("row", half * rows + local);
  q.row_end = p_.let("row_end", half * rows + rows);
  q.token = p_.let("token", chunks_.first_token(chunk) + local);
  q.token_end = p_.let("token_end", chunks_.first_token(chunk) + rows);
  return q;
}

SequenceTiles::Span SequenceTiles::seen(const Queries& tile, const Index& chunk) const {
  Index end = min(tile.token + cfg_.tile_rows, tile.token_end);
  Span span = seen_by(tile.token, end, chunk);
  if (has_window()) span.begin = p_.let("first_seen", span.begin);
  return {.begin = span.begin, .end = p_.let("seen", span.end)};
}

SequenceTiles::Span SequenceTiles::seen_by(const Index& first, const Index& end,
                                           const Index& chunk) const {
  Index tokens = chunks_.num_tokens(chunk);
  auto in_chunk = [&](const Index& token) {
    return max(min(token - chunks_.first_token(chunk), tokens), 0);
  };
  return {.begin = d_.window > 0 ? in_chunk(first - (d_.window - 1)) : 0,
          .end = d_.causal ? in_chunk(end) : tokens};
}

// Of all rows of a chunk, padding as well: no tile sees more.
Index SequenceTiles::sees_chunk(const Index& rank, const Index& chunk) const {
  auto half_sees = [&](int half) {
    Index first = chunks_.first_token(chunks_.chunk_of(rank, half));
    return seen_by(first, first + chunks_.chunk_rows(), chunk).any();
  };
  return chunks_.per_rank() == 1 ? half_sees(0) : half_sees(0) || half_sees(1);
}

Index SequenceTiles::sees_rank(const Index& rank, const Index& other) const {
  Index first = sees_chunk(rank, chunks_.chunk_of(other, 0));
  return chunks_.per_rank() == 1 ? first : first || sees_chunk(rank, chunks_.chunk_of(other, 1));
}

void SequenceTiles::attend(OnlineSoftmax& softmax, const Value& query, const Queries& tile,
                           const Keys& keys) const {
  auto add = [&] { add_blocks(softmax, query, tile, keys); };
  has_window() ? p_.when(keys.seen.any(), add) : add();
}

void SequenceTiles::add_blocks(OnlineSoftmax& softmax, const Value& query, const Queries& tile,
                               const Keys& keys) const {
  std::int64_t bn = cfg_.tile_kv;
  const auto& [begin, seen_end] = keys.seen;
  Index first = p_.let("first_key", chunks_.first_token(keys.chunk));
  // The first block of which a row does not see all; with a window all blocks are masked.
  Index full = d_.causal ? max(min(tile.token + 1 - first, seen_end), 0) : seen_end;
  Index full_blocks = p_.let("full_blocks", (has_window() ? begin : full) / bn);
  Index row = p_.let("key_row", keys.row), end = p_.let("key_end", keys.row + seen_end);
  p_.loop(begin / bn, ceil_div(seen_end, bn), [&](const Index& j) {
    auto block = [&](const TensorRef& tensor) {
      return tensor.tile({row + j * bn, tile.kv_head * d_.head_dim}, bn, d_.head_dim)
          .until_row(end);
    };
    Value scores = softmax.scores(dot(p_.zeros(DType::kF32, cfg_.tile_rows, bn), query,
                                      p_.load(block(keys.k)).T()));  // [tile_rows, bn]
    p_.when(j >= full_blocks, [&] {
      Value token = p_.iota_cols(first + j * bn, bn);
      Value sees = token < p_.splat(DType::kI32, first + seen_end);
      if (d_.causal) sees = sees && token <= p_.iota_rows(tile.token, cfg_.tile_rows);
      if (has_window()) {
        sees = sees && token > p_.iota_rows(tile.token, cfg_.tile_rows) - d_.window;
      }
      scores = where(sees, scores, p_.full(DType::kF32, 1, 1, kMaskedScore));
    });
    softmax.add(scores, block(keys.v));
  });
}

// Rows past the end of a chunk are another's; nobody stores what comes of them.
Value SequenceTiles::load(const Queries& tile) const {
  return p_.load(q_.tile({tile.row, tile.head * d_.head_dim}, cfg_.tile_rows, d_.head_dim));
}

Value SequenceTiles::load(const Queries& tile, const TensorRef& q, const Index& row) const {
  Index end = row + tile.row + (min(tile.token_end, chunks_.num_tokens()) - tile.token);
  return p_.load(q.tile({row + tile.row, tile.head * d_.head_dim}, cfg_.tile_rows, d_.head_dim)
                     .until_row(end));
}

OnlineSoftmax SequenceTiles::softmax(bool kept) const {
  bool by_product = !kept && cfg_.num_stages > 0 &&
                    multiplied_by_tensor_core(d_.dtype, cfg_.tile_kv, d_.head_dim);
  return {p_,
          {.dtype = d_.dtype,
           .rows = cfg_.tile_rows,
           .head_dim = d_.head_dim,
           .scale = score_scale(d_.scale, d_.head_dim),
           .sums_by_product = by_product}};
}

void SequenceTiles::store(const Queries& tile, const OnlineSoftmax& softmax) const {
  Slice rows = out_.tile({tile.row, tile.head * d_.head_dim}, cfg_.tile_rows, d_.head_dim);
  p_.store(rows.until_row(tile.row_end), cast(softmax.mean(), d_.dtype));
  if (!d_.lse) return;
  Slice column = lse_.tile({tile.head, tile.row}, cfg_.tile_rows, 1).rows_along(1).cols_along(0);
  p_.store(column.until_row(tile.row_end), softmax.lse());
}

Slice SequenceTiles::rows_of(const TensorRef& tensor, const Queries& tile,
                             std::int64_t cols) const {
  return tensor.tile({tile.head, tile.row, 0}, cfg_.tile_rows, cols).until_row(tile.row_end);
}

}  // namespace stretto
