// What the choice of tokens on a GPU takes (model/gpu/gpu_choice.h), beside the time that reading
// the logits once takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/model/choice/token_choice.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto::bench {

// Ways of sampling: "greedy"; "temperature" alone; "cuts": top-k 50, top-p 0.9 and min-p too;
// "all": with penalties of 1,000 tokens, bias, a mask and five alternatives, too; "flat": the same
// cuts, top-k apart, of logits that hardly differ, whose nucleus is most of the vocabulary.
std::vector<std::string> sampling_kinds();

// Wishes of so many rows, by lot.
class SamplingWishes {
 public:
  SamplingWishes(const std::string& kind, std::int64_t rows, std::int64_t vocab,
                 std::uint64_t seed);
  ChoiceWish wish(std::size_t row) const;
  std::size_t size() const { return rows_.size(); }

 private:
  std::vector<ChoiceRow> rows_;
  std::vector<std::vector<ChoiceEdit>> edits_;
  std::vector<std::uint32_t> allowed_;
};

// Every row of a step gets the token that is wished; none is looked at.
class TokensOnly : public RowVisitor {
 public:
  explicit TokensOnly(const SamplingWishes& wishes) : wishes_(wishes) {}
  Want want(std::size_t piece, std::int64_t, ChoiceWish& wish) override {
    wish = wishes_.wish(piece);
    return Want::kToken;
  }
  void take_choice(std::size_t, std::int64_t, const ChoiceResult& result) override {
    sum_ += result.token;
  }
  void take(std::size_t, std::int64_t, std::span<const float>) override { ++failed_; }
  std::int64_t failed() const { return failed_; }

 private:
  const SamplingWishes& wishes_;
  std::int64_t sum_ = 0, failed_ = 0;
};

struct SamplingSettings {
  std::vector<std::int64_t> rows;
  std::int64_t vocab = 128256;
  int samples = 8;
  int compared = 4;  // rows of each number that are compared with the definition
  std::uint64_t seed = 1;
};

// An object for each number of rows and kind: "us" of the launch by the device's timer, "call_us"
// of the host's whole call with its copies, "bound_us", and "wrong": rows whose token is another
// than the definition's.
Json time_sampling(GpuWorld& world, const SamplingSettings& settings, double copied);

}  // namespace stretto::bench
