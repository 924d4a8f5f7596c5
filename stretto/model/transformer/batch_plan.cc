#include "stretto/model/transformer/batch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/step/memory.h"

namespace stretto {
namespace {

using step::BufferKind;
using step::Size;

enum ExtentIndex : int { kRows, kDecodes, kPrompts, kWanted, kMost };

Size all_rows() { return Size::of_extent(kRows); }
Size own_rows(std::int64_t ranks) { return {.terms = {{kRows}}, .divisor = ranks}; }

std::vector<Size> sizes_of(const PlanLaunch& launch, const ModelShape& shape, std::int64_t bound) {
  switch (launch.rows) {
    case Rows::kAll:
      return {all_rows()};
    case Rows::kOwn:
      return {own_rows(shape.world_size)};
    case Rows::kMostOwn:
      return {{.terms = {{kMost}}, .divisor = shape.world_size}};
    case Rows::kOfAllRanks:
      return {{.terms = {{kMost}}, .divisor = shape.world_size, .factor = shape.all_ranks()}};
    case Rows::kAllAsNew:
      return {all_rows(), Size::of(0)};
    case Rows::kDecodes:
      if (shape.fills_steps()) return {Size::of(std::min(shape.paged.sequences, bound))};
      return {Size::of_extent(kDecodes)};
    case Rows::kPrompts:
      return {Size::of_extent(kPrompts)};
    case Rows::kFixed: {
      std::vector<Size> out;
      for (std::int64_t n : launch.fixed) out.push_back(Size::of(n));
      return out;
    }
  }
  return {};
}

class Converter {
 public:
  Converter(const ModelShape& shape, StepPlan plan) : s_(shape), from_(std::move(plan)) {}

  step::Plan run() {
    to_.name = fmt::format("{} rows", from_.bound);
    to_.group_size = s_.world_size;
    to_.num_ranks = s_.all_ranks();
    to_.extents = {{"rows", from_.bound},
                   {"decodes", std::min(s_.paged.sequences, from_.bound)},
                   {"prompts", from_.bound},
                   {"wanted", from_.head_rows}};
    if (s_.shares_experts()) to_.extents.push_back({"most", from_.bound});
    to_.programs = std::move(from_.programs);
    add_buffers();
    for (const PlanLaunch& l : from_.launches) add_node(l, sizes_of(l, s_, from_.bound));
    to_.sections = {{kBodySection, 0, to_.nodes.size()}};
    add_node(from_.head, {Size::of_extent(kWanted)});
    to_.sections.push_back({kHeadSection, to_.nodes.size() - 1, to_.nodes.size()});
    for (std::size_t i = 0; i < to_.buffers.size(); ++i) shape_by_tensors(static_cast<int>(i));
    return std::move(to_);
  }

 private:
  void add_buffers() {
    std::set<std::string> own;
    for (const PlanBuffer& b : from_.buffers) {
      own.insert(b.name);
      BufferKind kind = BufferKind::kLocal;
      if (b.input || b.name == StepPlan::kWanted) kind = BufferKind::kInput;
      if (b.state) kind = BufferKind::kState;
      if (b.name == StepPlan::kLogits || b.name == from_.head_input) kind = BufferKind::kOutput;
      add(b, kind);
    }
    for (const PlanBuffer& b : model_buffers(s_)) {
      if (!own.contains(b.name)) add(b, BufferKind::kConstant);
    }
    std::vector<PlanLaunch> launches = from_.launches;
    launches.push_back(from_.head);
    for (const PlanLaunch& l : launches) {
      const Program& program = to_.programs[l.program];
      for (const Binding& b : l.bindings) {
        auto t = static_cast<std::size_t>(program.find_tensor(b.tensor));
        step::Buffer& buffer = to_.buffers[index_.at(b.buffer)];
        bool updated = program.tensors[t].kind == TensorKind::kState;
        if (updated && buffer.kind == BufferKind::kConstant) buffer.kind = BufferKind::kState;
      }
    }
  }

  void add(const PlanBuffer& b, BufferKind kind) {
    index_[b.name] = to_.buffers.size();
    to_.buffers.push_back({.name = b.name,
                           .dtype = b.dtype,
                           .kind = kind,
                           .shape = {Size::of(b.rows), Size::of(b.cols)},
                           .symmetric = b.symmetric,
                           .across_groups = b.across_groups});
  }

  // "layers.3.rms_norm.2": of the layer whose weights or cache it is bound to, else of the one
  // before it.
  std::string name_of(const PlanLaunch& l) {
    for (const Binding& b : l.bindings) {
      if (!b.buffer.starts_with("layers.")) continue;
      layer_ = b.buffer.substr(0, b.buffer.find('.', sizeof("layers.") - 1) + 1);
    }
    bool outer = l.program == from_.head.program || to_.nodes.empty();
    std::string name = (outer ? "" : layer_) + to_.programs[l.program].name;
    int count = ++named_[name];
    return count == 1 ? name : fmt::format("{}.{}", name, count);
  }

  void add_node(const PlanLaunch& l, std::vector<Size> extents) {
    step::Node node{.name = name_of(l),
                    .program = static_cast<int>(l.program),
                    .bindings = {},
                    .extents = std::move(extents)};
    for (const Binding& b : l.bindings) {
      node.bindings.push_back({.tensor = b.tensor,
                               .buffer = static_cast<int>(index_.at(b.buffer)),
                               .from = b.behind_decodes ? Size::of_extent(kDecodes) : Size{}});
    }
    to_.nodes.push_back(std::move(node));
  }

  // As the first program that is bound to all of it sees it, in the step's extents.
  void shape_by_tensors(int buffer) {
    step::Buffer& b = to_.buffers[static_cast<std::size_t>(buffer)];
    if (b.kind == BufferKind::kConstant || b.kind == BufferKind::kState) return;
    for (const step::Node& node : to_.nodes) {
      for (const step::Binding& bound : node.bindings) {
        if (bound.buffer != buffer || bound.from != Size{}) continue;
        step::Buffer seen = b;
        seen.shape = shape_at(node, to_.program_of(node).find_tensor(bound.tensor));
        if (step::num_elements(to_, seen) != step::num_elements(to_, b)) continue;
        b.shape = std::move(seen.shape);
        return;
      }
    }
  }

  std::vector<Size> shape_at(const step::Node& node, int tensor) const {
    const Program& program = to_.program_of(node);
    std::vector<std::int64_t> bounds = bound_shape(program, tensor);
    std::map<std::int64_t, Size> extents;  // by variable
    std::size_t next = 0;
    for (std::size_t v = 0; v < program.vars.size(); ++v) {
      bool given =
          program.vars[v].kind == VarKind::kExtent || program.vars[v].kind == VarKind::kScalar;
      if (given) extents[static_cast<std::int64_t>(v)] = node.extents[next++];
    }
    std::vector<Size> out;
    const auto& dims = program.tensors[static_cast<std::size_t>(tensor)].shape;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      bool is_extent = dims[d].has_value() && dims[d].node().op == ExprOp::kVar;
      out.push_back(is_extent ? extents.at(dims[d].node().value) : Size::of(bounds[d]));
    }
    return out;
  }

  const ModelShape& s_;
  StepPlan from_;
  step::Plan to_;
  std::map<std::string, std::size_t> index_;  // of buffers
  std::string layer_;
  std::map<std::string, int> named_;
};

}  // namespace

namespace {

// Few rows take no less time than sixteen.
constexpr std::int64_t kCountsApart = 16, kCountsOfBound = 4;

std::vector<std::int64_t> counts_between(std::int64_t below, std::int64_t bound) {
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

step::Plan batch_plan(const ModelShape& shape, StepPlan plan) {
  return Converter(shape, std::move(plan)).run();
}

std::vector<std::set<std::string>> constant_inputs(const step::Plan& plan) {
  std::vector<std::set<std::string>> out(plan.programs.size()), others(plan.programs.size());
  for (const step::Node& node : plan.nodes) {
    const auto program = static_cast<std::size_t>(node.program);
    for (const step::Binding& b : node.bindings) {
      const BufferKind kind = plan.buffers[static_cast<std::size_t>(b.buffer)].kind;
      (kind == BufferKind::kConstant ? out : others)[program].insert(b.tensor);
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const std::string& tensor : others[i]) out[i].erase(tensor);
  }
  return out;
}

BatchMemory batch_memory(const ModelShape& shape, std::int64_t max_rows) {
  BatchMemory out;
  for (const BatchBounds& b : batch_bounds(shape, max_rows)) {
    ModelShape of_step = shape;
    of_step.paged.sequences = b.sequences;
    step::Memory memory = step::assign(batch_plan(of_step, plan_step(of_step, b.rows)));
    out.bytes += memory.total();
    out.unshared += memory.total() - memory.arena_bytes + memory.unshared_bytes;
  }
  return out;
}

std::vector<std::int64_t> batch_extents(const ModelShape& shape, const StepRows& rows,
                                        std::int64_t wanted) {
  std::int64_t prompts = rows.count - rows.decodes;
  if (shape.fills_steps() && prompts > 0) prompts = rows.count;
  std::vector<std::int64_t> out = {rows.count, rows.decodes, prompts, wanted};
  if (shape.shares_experts()) out.push_back(rows.most);
  return out;
}

}  // namespace stretto
