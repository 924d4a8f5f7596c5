#include "bench/gpu/experts/exchange_routing.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "stretto/base/at.h"

namespace stretto::bench {
ExchangeRouting::ExchangeRouting(const EpDesc& desc, std::uint64_t seed) : desc_(desc) {
  choose(seed);
  send();
  for (int r = 0; r < desc_.shape.world_size; ++r) place(r);
}

const std::vector<std::int32_t>& ExchangeRouting::sent(int from, int to) const {
  return sent_[at(from)][at(to)];
}

std::int64_t ExchangeRouting::row(int from, std::int64_t token) const {
  return from * desc_.shape.rows_per_rank() + token;
}

std::int64_t ExchangeRouting::most_received() const {
  std::int64_t most = 0;
  for (int to = 0; to < desc_.shape.world_size; ++to) {
    std::int64_t received = 0;
    for (int from = 0; from < desc_.shape.world_size; ++from) {
      if (from != to) received += static_cast<std::int64_t>(sent(from, to).size());
    }
    most = std::max(most, received);
  }
  return most;
}

double ExchangeRouting::mean_block() const {
  double all = 0;
  for (const auto& of_source : sent_) {
    for (const auto& tokens : of_source) all += static_cast<double>(tokens.size());
  }
  return all / (desc_.shape.world_size * desc_.shape.world_size);
}

bool ExchangeRouting::has(int rank, std::int32_t expert) const {
  ExpertSplit split = split_of(desc_);
  return split.first(rank) <= expert && expert < split.end(rank);
}

void ExchangeRouting::choose(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> share(0, 1);
  std::vector<std::int32_t> order(at(desc_.shape.num_experts));
  std::iota(order.begin(), order.end(), 0);
  for (int r = 0; r < desc_.shape.world_size; ++r) {
    auto& chosen = experts.emplace_back();
    auto& shares = weights.emplace_back();
    for (std::int64_t t = 0; t < desc_.shape.rows_per_rank(); ++t) {
      for (std::int64_t j = 0; j < desc_.shape.top_k; ++j) {
        std::uniform_int_distribution<std::int64_t> other(j, desc_.shape.num_experts - 1);
        std::swap(order[at(j)], order[at(other(random))]);
        chosen.push_back(order[at(j)]);
        shares.push_back(share(random));
      }
    }
  }
}

void ExchangeRouting::send() {
  for (int from = 0; from < desc_.shape.world_size; ++from) {
    auto& of_source = sent_.emplace_back(at(desc_.shape.world_size));
    auto& of_tokens =
        positions.emplace_back(at(desc_.shape.rows_per_rank() * desc_.shape.world_size), -1);
    for (int to = 0; to < desc_.shape.world_size; ++to) {
      for (std::int64_t t = 0; t < desc_.shape.rows_per_rank(); ++t) {
        auto first = experts[at(from)].begin() + t * desc_.shape.top_k;
        if (std::none_of(first, first + desc_.shape.top_k, [&](auto e) { return has(to, e); }))
          continue;
        of_tokens[at(t * desc_.shape.world_size + to)] = static_cast<std::int32_t>(t);
        of_source[at(to)].push_back(static_cast<std::int32_t>(t));
      }
    }
  }
}

void ExchangeRouting::place(int rank) {
  std::size_t pairs = at(desc_.received_rows() * desc_.shape.top_k);
  auto& shares = recv_weights.emplace_back(pairs, 0.0F);
  auto& places = slots.emplace_back(pairs, -1);
  std::vector<std::pair<std::int32_t, std::size_t>> own;  // expert, pair
  for (int from = 0; from < desc_.shape.world_size; ++from) {
    for (std::int32_t token : sent(from, rank)) {
      for (std::int64_t j = 0; j < desc_.shape.top_k; ++j) {
        std::size_t source = at(token * desc_.shape.top_k + j);
        std::size_t pair = at(row(from, token) * desc_.shape.top_k + j);
        shares[pair] = weights[at(from)][source];
        std::int32_t expert = experts[at(from)][source];
        if (has(rank, expert)) own.emplace_back(expert, pair);
      }
    }
  }
  std::sort(own.begin(), own.end());
  for (std::size_t i = 0; i < own.size(); ++i) places[own[i].second] = static_cast<std::int32_t>(i);
}

}  // namespace stretto::bench
