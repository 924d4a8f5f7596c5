// What an operator of the catalog may run as at a shape: fused programs, one per config, and the
// operators that do the same one after the other. The chooser ranks both.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "stretto/ops/ag_gemm/ag_gemm.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/gemm_ar/gemm_ar.h"
#include "stretto/ops/gemm_rs/gemm_rs.h"
#include "stretto/ops/moe/even_routing.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/operator/operator.h"

namespace stretto {

struct Candidate {
  std::string config;                 // names it among the operator's candidates
  std::function<Program()> program;   // tile level; cheap
  predict::LaunchTables tables = {};  // that it is predicted for
};

struct OpCandidates {
  std::string desc;
  OpShape shape;                 // with sizes that were left open filled in
  std::vector<Candidate> fused;  // the operator's default first
  // The unfused path: operators that run in sequence, each on the same ranks. Empty where the
  // operator is a single step. `program`: the step, in its default config, where the shape does not
  // say all about it; none: the catalog's operator.
  struct Step {
    std::string op;
    OpShape shape;
    std::function<Program()> program = {};
    predict::LaunchTables tables = {};
  };
  std::vector<Step> sequence;
  // Measurements speak for the sequence where predictions do not tell it from the fused programs.
  bool prefers_sequence = false;
};

// Offers a product and a collective one after the other; both steps have all rows.
void add_sequence(OpCandidates& out, const AgGemmDesc& desc, const GpuTarget& gpu = {});
void add_sequence(OpCandidates& out, const GemmRsDesc& desc, const GpuTarget& gpu = {});
void add_sequence(OpCandidates& out, const GemmArDesc& desc, const GpuTarget& gpu = {});
// The collective that is the second step of GEMM+RS's sequence.
CollectiveDesc scattered_sums(const GemmRsDesc& desc);

// For layers of experts: the gathering of all tokens, products of rows that lie expert by expert,
// and weighted sums that are added over the ranks. Adds nothing where the tokens are there.
void add_sequence(OpCandidates& out, const AgGroupedDesc& desc, const GpuTarget& gpu = {});
void add_sequence(OpCandidates& out, const GroupedRsDesc& desc, const GpuTarget& gpu = {});
void add_sequence(OpCandidates& out, const MoeLayerDesc& desc, const GpuTarget& gpu = {});
// For whole experts: tokens travel in one hop, both ways.
void add_sequence(OpCandidates& out, const EpMoeLayerDesc& desc, const GpuTarget& gpu = {});

// Offers a program of `desc` in each of these configs that is not offered yet.
template <typename Desc, typename Config>
void add_configs(OpCandidates& out, const Desc& desc, const std::vector<Config>& configs,
                 Program (*make)(const Desc&, const Config&)) {
  out.desc = to_string(desc);
  for (const Config& config : configs) {
    std::string text = to_string(config);
    bool known = std::any_of(out.fused.begin(), out.fused.end(),
                             [&](const Candidate& c) { return c.config == text; });
    if (known) continue;
    Candidate& added = out.fused.emplace_back(text, [=] { return make(desc, config); });
    if constexpr (requires { even_routing(desc, config); }) {
      added.tables = even_routing(desc, config);
    }
  }
}

// `ag_gemm`, `gemm_rs` and `gemm_ar` offer every way of gathering, scattering and reducing; the
// catalog's other names of them, the one that they name. Sizes left open become 512. GEMM +
// reduce-scatter and + all-reduce are taken without a residual, which their sequence would not
// have. Operators without configs to choose from have their default alone. UserError for an
// operator that is not in the catalog.
OpCandidates candidates(const std::string& op, const OpShape& shape, const GpuTarget& gpu = {});
// The candidates for one step of a sequence.
OpCandidates candidates(const OpCandidates::Step& step, const GpuTarget& gpu = {});

}  // namespace stretto
