// Orders of launches (launch_orders.h), and what is found of each: the part of the proof that looks
// at one happens-before after another.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stretto/proof/launch_orders.h"
#include "stretto/proof/prove.h"

namespace stretto {

// Of one order.
struct OrderVerdict {
  std::vector<Finding> findings;
  ProofStats stats;
  std::exception_ptr error;
};

struct SizesVerdict {
  std::vector<OrderVerdict> orders;
  std::optional<OrdersLeftOut> left_out;  // of kinds of launches some orders were
};

// What is found of launches of these sizes, in all orders or in as many mixed ones as affordable.
// On so many threads; the verdict is that of one order after the other, up to the first with a
// finding.
SizesVerdict prove_sizes(const std::vector<SizedGraph>& cases, const ProofOptions& options,
                         std::size_t affordable, std::size_t num_threads);

// Of a case, which the text ends with where there are several.
Finding finding_with(FindingKind kind, const std::string& text, const std::string& where,
                     const std::vector<ChosenCase>& cases);

}  // namespace stretto
