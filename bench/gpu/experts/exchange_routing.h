// Where the tokens of an exchange go (exchange.h), counted on the host: what dispatch is checked
// against, and the tables that combine is given.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/ops/moe/ep_desc.h"

namespace stretto::bench {

// Of ranks that all have desc.rows_per_rank() tokens. Token t of rank s lies in row s * S + t
// wherever it goes (ep_send.h).
class ExchangeRouting {
 public:
  // Every token has top_k different experts, any as likely as any other.
  ExchangeRouting(const EpDesc& desc, std::uint64_t seed);

  const std::vector<std::int32_t>& sent(int from, int to) const;  // tokens, in order
  std::int64_t row(int from, std::int64_t token) const;
  std::int64_t most_received() const;  // tokens of others at any rank
  double mean_block() const;           // tokens from a rank to a rank
  bool has(int rank, std::int32_t expert) const;

  // By rank, as the operators name them.
  std::vector<std::vector<std::int32_t>> experts;    // [S, top_k]
  std::vector<std::vector<float>> weights;           // [S, top_k]
  std::vector<std::vector<std::int32_t>> positions;  // [S, P]
  std::vector<std::vector<float>> recv_weights;      // [P * S, top_k]
  std::vector<std::vector<std::int32_t>> slots;      // [P * S, top_k], rows sorted by expert

 private:
  void choose(std::uint64_t seed);
  void send();
  void place(int rank);

  EpDesc desc_;
  std::vector<std::vector<std::vector<std::int32_t>>> sent_;  // by source, by destination
};

}  // namespace stretto::bench
