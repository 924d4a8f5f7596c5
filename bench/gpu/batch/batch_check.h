// Whether requests are answered alike in company and alone, on a model with random weights.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/base/json.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto::bench {

struct CompanySettings {
  int requests = 64;
  std::uint64_t seed = 1;
  std::int64_t max_rows = 256;
  std::int64_t num_pages = 1;  // that the model has
  double seconds = 60;         // no further request is run alone after this
};

// Greedy answers of requests by lot, all at once in so few pages that some are cut short and begin
// again, and each alone: tokens and the bits of the logits that they were chosen from.
struct Company {
  int requests = 0, alone = 0;  // of them run alone
  int other_tokens = 0, other_bits = 0;
  std::int64_t tokens = 0, preemptions = 0, steps = 0;
  double together_s = 0, alone_s = 0;
  std::string first;         // what differs first
  std::uint64_t digest = 0;  // of all answers in company, bits included

  std::string to_string() const;
  Json to_json() const;
};

Company compare_company(BatchModel& model, const CompanySettings& settings);

}  // namespace stretto::bench
