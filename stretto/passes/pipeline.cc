#include "stretto/passes/pipeline.h"

#include <fmt/format.h>

#include <chrono>

#include "stretto/base/errors.h"
#include "stretto/ir/verifier.h"
#include "stretto/passes/alike_arms.h"
#include "stretto/passes/epilogue_stores.h"
#include "stretto/passes/expand_scaled_products.h"
#include "stretto/passes/overlap_products.h"
#include "stretto/passes/resolve_tile_primitives.h"
#include "stretto/passes/split_agents.h"
#include "stretto/passes/stagger_products.h"
#include "stretto/passes/take_turns.h"

namespace stretto {

const std::vector<Pass>& schedule_pipeline() {
  static const std::vector<Pass> passes = {
      {"resolve_tile_primitives", resolve_tile_primitives},
      {"expand_scaled_products", expand_scaled_products},
      {"split_agents", split_agents},
      {"merge_alike_arms", merge_alike_arms},
      {"overlap_products", overlap_products},
      {"stagger_products", stagger_products},
      {"take_turns", take_turns},
      {"epilogue_stores", epilogue_stores},
  };
  return passes;
}

Program run_pipeline(Program program, const AfterPass& after) {
  verify(program);
  for (const Pass& pass : schedule_pipeline()) {
    auto begin = std::chrono::steady_clock::now();
    program = pass.run(std::move(program));
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    try {
      verify(program);
    } catch (const UserError& e) {
      throw InternalError(fmt::format("after pass {}: {}", pass.name, e.what()));
    }
    if (after) after(pass, program, seconds.count());
  }
  return program;
}

}  // namespace stretto
