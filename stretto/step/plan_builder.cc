#include "stretto/step/plan_builder.h"

#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"

namespace stretto::step {

PlanBuilder::PlanBuilder(std::string name, int group_size, int num_ranks)
    : plan_{.name = std::move(name), .group_size = group_size, .num_ranks = num_ranks} {}

int PlanBuilder::extent(std::string name, std::int64_t bound) {
  plan_.extents.push_back({std::move(name), bound});
  return static_cast<int>(plan_.extents.size()) - 1;
}

int PlanBuilder::program(Program program) {
  plan_.programs.push_back(std::move(program));
  return static_cast<int>(plan_.programs.size()) - 1;
}

void PlanBuilder::buffer(Buffer buffer) {
  index_[buffer.name] = static_cast<int>(plan_.buffers.size());
  plan_.buffers.push_back(std::move(buffer));
}

void PlanBuilder::node(std::string name, int program, std::vector<Size> extents,
                       const std::vector<NamedBinding>& bindings) {
  Node node{
      .name = std::move(name), .program = program, .bindings = {}, .extents = std::move(extents)};
  for (const NamedBinding& b : bindings) {
    auto found = index_.find(b.buffer);
    STRETTO_CHECK(found != index_.end(), node.name + " binds no buffer " + b.buffer);
    node.bindings.push_back({.tensor = b.tensor, .buffer = found->second, .from = b.from});
  }
  plan_.nodes.push_back(std::move(node));
}

void PlanBuilder::end_section(std::string name) {
  const std::size_t begin = plan_.sections.empty() ? 0 : plan_.sections.back().end;
  plan_.sections.push_back({std::move(name), begin, plan_.nodes.size()});
}

Plan PlanBuilder::finish() {
  for (std::size_t i = 0; i < plan_.buffers.size(); ++i) shape_by_tensors(static_cast<int>(i));
  return std::move(plan_);
}

void PlanBuilder::shape_by_tensors(int buffer) {
  Buffer& b = plan_.buffers[at(buffer)];
  if (b.kind == BufferKind::kConstant || b.kind == BufferKind::kState) return;
  for (const Node& node : plan_.nodes) {
    for (const Binding& bound : node.bindings) {
      if (bound.buffer != buffer || bound.from != Size{}) continue;
      Buffer seen = b;
      seen.shape = shape_at(node, plan_.program_of(node).find_tensor(bound.tensor));
      if (num_elements(plan_, seen) != num_elements(plan_, b)) continue;
      b.shape = std::move(seen.shape);
      return;
    }
  }
}

std::vector<Size> PlanBuilder::shape_at(const Node& node, int tensor) const {
  const Program& program = plan_.program_of(node);
  std::vector<std::int64_t> bounds = bound_shape(program, tensor);
  std::map<std::int64_t, Size> extents;  // by variable
  std::size_t next = 0;
  for (std::size_t v = 0; v < program.vars.size(); ++v) {
    bool given =
        program.vars[v].kind == VarKind::kExtent || program.vars[v].kind == VarKind::kScalar;
    if (given) extents[static_cast<std::int64_t>(v)] = node.extents[next++];
  }
  std::vector<Size> out;
  const auto& dims = program.tensors[at(tensor)].shape;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    bool is_extent = dims[d].has_value() && dims[d].node().op == ExprOp::kVar;
    out.push_back(is_extent ? extents.at(dims[d].node().value) : Size::of(bounds[d]));
  }
  return out;
}

}  // namespace stretto::step
