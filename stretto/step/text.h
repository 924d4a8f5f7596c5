// The text form of a step plan: what `stretto predict --model DIR --plan FILE` writes and
// parse() reads back.
//
//   step "batch" group 2 ranks 2 {
//     extent "rows" bound 256
//     constant "layers.0.qkv" : bf16[3072, 1024]
//     input "tokens" : i32[256, 1]
//     local "x" : bf16["rows", 1024] symmetric
//     section "body" {
//       node "layers.0.rms_norm" runs 0 ("rows") {
//         "x" = "x"
//         "out" = "normed" from 4 * "rows" - 1 over 8 times 2
//       }
//     }
//     program "rms_norm" world 2 level tile { ... }     // printer.h, numbered in order from 0
//   }
//
// A size is a sum, divided (rounded up, "over") and multiplied ("times"). parse(print(plan)) is
// plan. The text is hostile until parsed: names must be declared before they are used, every number
// is bounded, and nothing is evaluated. What comes out has indices in range but is not checked;
// check.h comes next.
#pragma once

#include <string>
#include <string_view>

#include "stretto/step/plan.h"

namespace stretto::step {

std::string print(const Plan& plan);
std::string print_size(const Plan& plan, const Size& size);

// UserError "where:line:column: what was expected, got ...".
Plan parse(std::string_view text, const std::string& where);

}  // namespace stretto::step
