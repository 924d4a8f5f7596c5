#include "stretto/model/transformer/batch_plan.h"

#include <algorithm>
#include <set>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/step/memory.h"
#include "stretto/step/predict.h"

namespace stretto {
namespace {

// Few rows take no less time than sixteen, nor any that are one tile's less than all of them: rows
// that are not there take TMA longer than others (docs/performance/gemm.md).
constexpr std::int64_t kCountsApart = 16, kCountsOfBound = 4, kRowsOfTile = 128;

std::vector<std::int64_t> counts_between(std::int64_t below, std::int64_t bound) {
  if (bound <= kRowsOfTile) return {bound};
  const std::int64_t each = ceil_div(bound - below, kCountsOfBound * kCountsApart) * kCountsApart;
  std::vector<std::int64_t> counts;
  for (std::int64_t c = below + each; c < bound; c += each) counts.push_back(c);
  counts.push_back(bound);
  return counts;
}

}  // namespace

std::int64_t BatchBounds::filled(std::int64_t num_rows) const {
  STRETTO_CHECK(num_rows <= rows, "a step outside its bounds");
  return counts.empty() ? num_rows : *std::ranges::lower_bound(counts, num_rows);
}

std::vector<BatchBounds> batch_bounds(const ModelShape& s, std::int64_t max_rows) {
  std::vector<std::int64_t> all = {1, 16};
  if (s.fills_steps()) {
    for (all = {1}; all.back() < max_rows;) all.push_back(2 * all.back());
  }
  std::erase_if(all, [&](std::int64_t rows) { return rows >= max_rows; });
  all.push_back(max_rows);
  std::vector<BatchBounds> bounds;
  for (std::int64_t rows : all) {
    // Rows of nobody are one sequence more, or decode each for itself.
    bool decodes = s.paged.attention == PagedCache::Attention::kDecodes;
    std::int64_t most = s.paged.sequences + (s.fills_steps() ? 1 : 0);
    const std::int64_t below = bounds.empty() ? 0 : bounds.back().rows;
    bounds.push_back({.rows = rows, .sequences = decodes ? rows : std::min(most, rows)});
    if (s.fills_steps()) bounds.back().counts = counts_between(below, rows);
  }
  return bounds;
}

BatchMemory batch_memory(const ModelShape& shape, std::int64_t max_rows) {
  BatchMemory out;
  std::size_t arena = 0;  // of all steps
  for (const BatchBounds& b : batch_bounds(shape, max_rows)) {
    ModelShape of_step = shape;
    of_step.paged.sequences = b.sequences;
    const step::Plan plan = plan_step(of_step, b.rows).plan;
    const step::Memory memory = step::assign(plan);
    const std::size_t others = memory.total() - memory.arena_bytes + step::bytes_of(plan).programs;
    arena = std::max(arena, memory.arena_bytes);
    out.bytes += others;
    out.unshared += others + memory.unshared_bytes;
  }
  out.bytes += arena;
  return out;
}

std::vector<ProveOptions> step_proofs(const ModelShape& shape, const step::Plan& plan,
                                      const BatchBounds& bounds, const GpuTarget& gpu) {
  std::vector<std::set<std::vector<std::int64_t>>> sizes(plan.programs.size());
  const step::Section& body = *plan.find_section(kBodySection);
  for (std::int64_t count : bounds.counts) {
    if (count == bounds.rows) continue;
    const std::vector<std::int64_t> values =
        batch_extents(shape, {.count = count, .most = count}, {});
    for (std::size_t i = body.begin; i < body.end; ++i) {
      const step::Node& node = plan.nodes[i];
      sizes[static_cast<std::size_t>(node.program)].insert(step::eval(node.extents, values));
    }
  }
  std::vector<ProveOptions> proofs;
  for (const auto& of_program : sizes) {
    proofs.push_back(
        {.bounds_only = true, .also_at = {of_program.begin(), of_program.end()}, .gpu = gpu});
  }
  return proofs;
}

}  // namespace stretto
