#include "stretto/step/plan.h"

#include <algorithm>

namespace stretto::step {
namespace {

template <typename Named>
int find_named(const std::vector<Named>& all, const std::string& name) {
  auto found = std::find_if(all.begin(), all.end(), [&](const Named& n) { return n.name == name; });
  return found == all.end() ? -1 : static_cast<int>(found - all.begin());
}

bool only_stores(OpCode code) {
  return code == OpCode::kStore || code == OpCode::kStoreRows || code == OpCode::kStorePacket;
}

void note(const Program& program, int tensor, bool reads, std::vector<Access>& out) {
  if (tensor < 0) return;
  auto t = static_cast<std::size_t>(tensor);
  if (reads && program.tensors[t].kind == TensorKind::kState) out[t].reads = true;
}

// Marks states that are read: any use but a plain store.
void walk(const Program& program, const Block& block, std::vector<Access>& out) {
  for (const Op& op : block) {
    bool copies = op.code == OpCode::kCopy;
    if (op.region) note(program, op.region->tensor, !only_stores(op.code), out);
    if (op.region2) note(program, op.region2->tensor, !copies, out);
    for (const Block& body : op.bodies) walk(program, body, out);
  }
}

}  // namespace

const char* name(BufferKind kind) {
  constexpr const char* kNames[] = {"constant", "state", "input", "output", "local"};
  return kNames[static_cast<int>(kind)];
}

std::vector<std::int64_t> Plan::bounds() const {
  std::vector<std::int64_t> out;
  for (const Extent& e : extents) out.push_back(e.bound);
  return out;
}

int Plan::find_buffer(const std::string& name) const { return find_named(buffers, name); }
int Plan::find_extent(const std::string& name) const { return find_named(extents, name); }

const Section* Plan::find_section(const std::string& name) const {
  int found = find_named(sections, name);
  return found < 0 ? nullptr : &sections[static_cast<std::size_t>(found)];
}

std::int64_t eval(const Size& size, const std::vector<std::int64_t>& values) {
  std::int64_t sum = size.constant;
  for (const Size::Term& t : size.terms) {
    sum += t.coefficient * values[static_cast<std::size_t>(t.extent)];
  }
  if (sum <= 0) return 0;
  return (sum + size.divisor - 1) / size.divisor * size.factor;
}

std::vector<std::int64_t> eval(const std::vector<Size>& sizes,
                               const std::vector<std::int64_t>& values) {
  std::vector<std::int64_t> out;
  for (const Size& s : sizes) out.push_back(eval(s, values));
  return out;
}

std::int64_t num_elements(const Plan& plan, const Buffer& buffer) {
  std::int64_t count = 1;
  for (std::int64_t dim : eval(buffer.shape, plan.bounds())) count *= dim;
  return count;
}

std::size_t num_bytes(const Plan& plan, const Buffer& buffer) {
  return static_cast<std::size_t>(num_elements(plan, buffer)) * size_bytes(buffer.dtype);
}

std::size_t num_bytes(const Buffer& buffer) { return num_bytes(Plan{}, buffer); }

std::size_t row_bytes(const Plan& plan, const Buffer& buffer) {
  std::int64_t count = 1;
  std::vector<std::int64_t> shape = eval(buffer.shape, plan.bounds());
  for (std::size_t d = 1; d < shape.size(); ++d) count *= shape[d];
  return static_cast<std::size_t>(count) * size_bytes(buffer.dtype);
}

std::vector<Access> accesses(const Program& program) {
  std::vector<Access> out(program.tensors.size());
  for (std::size_t t = 0; t < out.size(); ++t) {
    TensorKind kind = program.tensors[t].kind;
    out[t].reads = kind == TensorKind::kInput;
    out[t].writes = kind == TensorKind::kOutput || kind == TensorKind::kState;
  }
  walk(program, program.on_start.body, out);
  for (const Role& role : program.roles) {
    for (const Agent& agent : role.agents) walk(program, agent.body, out);
  }
  walk(program, program.on_end.body, out);
  return out;
}

std::vector<std::set<std::string>> constant_inputs(const Plan& plan) {
  std::vector<std::set<std::string>> out(plan.programs.size()), others(plan.programs.size());
  for (const Node& node : plan.nodes) {
    const auto program = static_cast<std::size_t>(node.program);
    for (const Binding& b : node.bindings) {
      const BufferKind kind = plan.buffers[static_cast<std::size_t>(b.buffer)].kind;
      (kind == BufferKind::kConstant ? out : others)[program].insert(b.tensor);
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const std::string& tensor : others[i]) out[i].erase(tensor);
  }
  return out;
}

}  // namespace stretto::step
