#include "stretto/proof/mutation/site.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/ir/op_info.h"

namespace stretto {
namespace {

void walk(const Block& block, Site site, std::size_t body, std::vector<Site>& out) {
  site.path.push_back({body, 0});
  for (std::size_t i = 0; i < block.size(); ++i) {
    site.path.back().op = i;
    out.push_back(site);
    for (std::size_t b = 0; b < block[i].bodies.size(); ++b) {
      walk(block[i].bodies[b], site, b, out);
    }
  }
}

const Role* role_of(const Program& program, const Site& site) {
  return site.role >= 0 ? &program.roles[at(site.role)] : nullptr;
}

std::string where(const Program& program, const Site& site) {
  if (site.role == Site::kOnStart) return "on_start";
  if (site.role == Site::kOnEnd) return "on_end";
  const Role& role = program.roles[at(site.role)];
  if (role.agents.size() == 1) return role.name;
  return role.name + "." + role.agents[at(site.agent)].name;
}

// The name of what the operation works on, empty where it has none.
std::string object(const Program& program, const Site& site, const Op& op) {
  const Role* role = role_of(program, site);
  switch (op.code) {
    case OpCode::kNotify:
    case OpCode::kWait:
      return program.signals[at(op.symbol)].name;
    case OpCode::kPipePut:
    case OpCode::kPipeFill:
    case OpCode::kPipeGet:
    case OpCode::kPipeRelease:
      return role->pipes[at(op.symbol)].name;
    case OpCode::kArrive:
    case OpCode::kBarrierSync:
      return role->barriers[at(op.symbol)].name;
    default:
      return op.region ? program.tensors[at(op.region->tensor)].name : "";
  }
}

// The first signal used inside a loop or condition names it.
std::string inner_object(const Program& program, const Op& op) {
  for (const Block& body : op.bodies) {
    for (const Op& inner : body) {
      if (inner.code == OpCode::kNotify || inner.code == OpCode::kWait) {
        return program.signals[at(inner.symbol)].name;
      }
      std::string deeper = inner_object(program, inner);
      if (!deeper.empty()) return deeper;
    }
  }
  return "";
}

void collect_shared(const Program& program, const Op& op, std::vector<int>& out) {
  for (const auto* region : {&op.region, &op.region2}) {
    if (!*region) continue;
    const Tensor& t = program.tensors[at((*region)->tensor)];
    bool shared = t.space == Space::kSymmetric || t.kind == TensorKind::kBuffer ||
                  t.kind == TensorKind::kState;
    if (shared) out.push_back((*region)->tensor);
  }
  for (const Block& body : op.bodies) {
    for (const Op& inner : body) collect_shared(program, inner, out);
  }
}

}  // namespace

std::vector<Site> all_sites(const Program& program) {
  std::vector<Site> out;
  walk(program.on_start.body, {.role = Site::kOnStart}, 0, out);
  for (std::size_t r = 0; r < program.roles.size(); ++r) {
    for (std::size_t a = 0; a < program.roles[r].agents.size(); ++a) {
      Site site{.role = static_cast<int>(r), .agent = static_cast<int>(a)};
      walk(program.roles[r].agents[a].body, site, 0, out);
    }
  }
  walk(program.on_end.body, {.role = Site::kOnEnd}, 0, out);
  return out;
}

Block& body_at(Program& program, const Site& site) {
  if (site.role == Site::kOnStart) return program.on_start.body;
  if (site.role == Site::kOnEnd) return program.on_end.body;
  return program.roles[at(site.role)].agents[at(site.agent)].body;
}

Block& block_at(Program& program, const Site& site, std::size_t depth) {
  Block* block = &body_at(program, site);
  for (std::size_t d = 0; d < depth; ++d) {
    block = &(*block)[site.path[d].op].bodies[site.path[d + 1].body];
  }
  return *block;
}

const Op& op_at(const Program& program, const Site& site) {
  // Nothing is written through the reference.
  return block_at(const_cast<Program&>(program), site, site.path.size() - 1)[site.path.back().op];
}

std::string name(const Program& program, const Site& site) {
  const Op& op = op_at(program, site);
  std::string what = object(program, site, op);
  if (what.empty()) what = inner_object(program, op);
  std::string text = fmt::format("{}: {}", where(program, site), op_info(op.code).name);
  return what.empty() ? text : fmt::format("{} '{}'", text, what);
}

bool synchronises_inside(const Op& op) {
  if (op_info(op.code).synchronises) return true;
  return std::any_of(op.bodies.begin(), op.bodies.end(), [](const Block& body) {
    return std::any_of(body.begin(), body.end(), synchronises_inside);
  });
}

std::vector<int> shared_tensors(const Program& program, const Op& op) {
  std::vector<int> out;
  collect_shared(program, op, out);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace stretto
