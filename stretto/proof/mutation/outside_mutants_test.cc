// Every line of every shipped operator that touches a tensor, with its boxes moved out of it. What
// is masked then is a matter of values to all other checks. If this fails, such a slip is proved.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/catalog/gpu_shape.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/mutation/run_mutants.h"
#include "stretto/proof/mutation/site.h"

namespace stretto {
namespace {

// File, line, tensor, and whether as a copy's destination.
using Line = std::tuple<std::string, int, int, bool>;

std::map<Line, std::vector<Site>> lines_of(const Program& program) {
  std::map<Line, std::vector<Site>> lines;
  for (const Site& site : all_sites(program)) {
    const Op& op = op_at(program, site);
    if (op.region) lines[{op.loc.file, op.loc.line, op.region->tensor, false}].push_back(site);
    if (op.region2) lines[{op.loc.file, op.loc.line, op.region2->tensor, true}].push_back(site);
  }
  return lines;
}

// In the first dimension whose place is not chosen by register values.
void move_out(const Program& program, Op& op, Region& region) {
  bool picks_rows = op.code == OpCode::kLoadRows || op.code == OpCode::kStoreRows ||
                    (op.code == OpCode::kPipePut && !op.operands.empty());
  std::size_t d = picks_rows && region.row_dim == 0 ? 1 : 0;
  std::int64_t size = bound_shape(program, region.tensor)[d];
  region.origin[d] = region.origin[d] + 3 * (size + region.rows + region.cols);
}

struct Count {
  int mutants = 0, as_outside = 0;
};

void check(const std::string& label, const Program& program, Count& count) {
  ProofResult original = prove(program, mutant_options());
  ASSERT_FALSE(original.rejected()) << original.report;
  if (!original.stats.every_table) return;
  for (const auto& [line, sites] : lines_of(program)) {
    Program mutant = program;
    bool second = std::get<3>(line);
    for (const Site& site : sites) {
      Op& op = block_at(mutant, site, site.path.size() - 1)[site.path.back().op];
      move_out(program, op, second ? *op.region2 : *op.region);
    }
    std::string tensor = program.tensors[static_cast<std::size_t>(std::get<2>(line))].name;
    ProofResult result = prove(mutant, mutant_options());
    EXPECT_TRUE(result.rejected()) << label << ": '" << tensor << "' at " << std::get<0>(line)
                                   << ":" << std::get<1>(line) << (second ? " (to)" : "");
    ++count.mutants;
    if (result.rejected() && result.findings[0].kind == FindingKind::kOutside) ++count.as_outside;
  }
}

TEST(OutsideMutants, OfEveryOperatorAreRejected) {
  Count count;
  for (const OperatorInfo& op : drawn_of("outside mutants", catalog(), 3)) {
    Program plain = run_pipeline(op.program(op.shapes(2)[1]));
    check(fmt::format("{} P=2", op.name), plain, count);
    Program split = run_pipeline(op.program(gpu_shape(op, 2)));
    if (is_split(split)) check(fmt::format("{} P=2 gpu", op.name), split, count);
  }
  fmt::print("{} lines, {} rejected for that alone\n", count.mutants, count.as_outside);
  EXPECT_GT(count.as_outside, every_case_is_drawn() ? 100 : 20);
}

}  // namespace
}  // namespace stretto
