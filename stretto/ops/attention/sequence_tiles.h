// What the programs of sequence_attention.h share: where tokens lie, which keys a tile of queries
// sees, and the loop over a chunk of them.
#pragma once

#include <cstdint>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/attention/online_softmax.h"
#include "stretto/ops/attention/sequence_attention.h"

namespace stretto {

// Chunks of tokens: of each rank two, zigzag, or one.
class Chunks {
 public:
  Chunks(const Index& m, const SequenceAttentionDesc& desc);

  const Index& chunk_rows() const { return chunk_rows_; }            // padding included
  const Index& num_tokens() const { return m_; }                     // of all ranks
  std::int64_t most_chunk_rows() const { return most_chunk_rows_; }  // at the bound of m
  std::int64_t per_rank() const { return per_rank_; }
  Index chunk_of(const Index& owner, const Index& half) const;  // half: which of the rank's
  Index first_token(const Index& chunk) const { return chunk * chunk_rows_; }
  Index num_tokens(const Index& chunk) const;

 private:
  Index m_, chunk_rows_;
  std::int64_t world_size_, per_rank_, most_chunk_rows_;
};

class SequenceTiles {
 public:
  // Checks both and declares the caller's tensors. UserError naming `op` and the bad field.
  SequenceTiles(ProgramBuilder& p, const char* op, const SequenceAttentionDesc& desc,
                const SequenceAttentionConfig& config);

  const Chunks& chunks() const { return chunks_; }
  std::int64_t num_copies() const { return num_copies_; }  // that move a chunk of k or v
  std::int64_t q_cols() const { return d_.num_heads * d_.head_dim; }
  std::int64_t kv_cols() const { return d_.num_kv_heads * d_.head_dim; }
  const TensorRef& q() const { return q_; }
  const TensorRef& k() const { return k_; }
  const TensorRef& v() const { return v_; }

  // Rows [row, row_end) of this rank, as many as a tile has, of one head.
  struct Queries {
    Index head, kv_head;
    Index row, row_end;                          // ends with the chunk, padding included
    Index token, token_end;                      // of the first row; of the chunk
    Index any() const { return row < row_end; }  // tiles of smaller m have no rows
  };
  std::int64_t num_queries() const { return chunks_.per_rank() * row_tiles_ * d_.num_heads; }
  // Long rows come first, so that no worker is left with one at the end, and heads of a group
  // before the next group, so that their keys stay in the cache.
  Queries queries(const Index& tile) const { return queries(tile, p_.rank()); }
  Queries queries(const Index& tile, const Index& owner) const;  // in the rows of another rank

  // Tokens of a chunk, counted from its first.
  struct Span {
    Index begin, end;
    Index any() const { return begin < end; }
  };
  Span seen(const Queries& tile, const Index& chunk) const;  // by the tile
  // Whether any tile of a rank sees any token of a chunk, or of another rank.
  Index sees_chunk(const Index& rank, const Index& chunk) const;
  Index sees_rank(const Index& rank, const Index& other) const;
  // Adds the keys and values of a chunk that the tile sees. They lie from `row` on.
  struct Keys {
    const TensorRef &k, &v;
    Index row;
    Index chunk;
    Span seen;
  };
  void attend(OnlineSoftmax& softmax, const Value& query, const Queries& tile,
              const Keys& keys) const;

  Value load(const Queries& tile) const;  // [tile_rows, head_dim]
  // From a tensor where the rows of the owner begin at `row`, tokens only.
  Value load(const Queries& tile, const TensorRef& q, const Index& row) const;
  bool has_window() const { return d_.window > 0; }
  // `kept`: in memory, in between or for others to merge.
  OnlineSoftmax softmax(bool kept) const;
  void store(const Queries& tile, const OnlineSoftmax& softmax) const;
  // The tile's rows of a tensor [num_heads, rows, cols].
  Slice rows_of(const TensorRef& tensor, const Queries& tile, std::int64_t cols) const;

 private:
  // What tokens [first, end) see of a chunk.
  Span seen_by(const Index& first, const Index& end, const Index& chunk) const;
  void add_blocks(OnlineSoftmax& softmax, const Value& query, const Queries& tile,
                  const Keys& keys) const;

  ProgramBuilder& p_;
  const SequenceAttentionDesc d_;
  const SequenceAttentionConfig cfg_;
  Chunks chunks_;
  std::int64_t row_tiles_;  // of a chunk
  std::int64_t num_copies_;
  TensorRef q_, k_, v_, out_, lse_;
};

}  // namespace stretto
