#include "stretto/codegen/elided_waits.h"

#include <algorithm>
#include <vector>

namespace stretto {
namespace {

bool only_waits(const Op& op) {
  if (op.code == OpCode::kWait) return true;
  bool any = false;
  for (const Block& body : op.bodies) {
    any |= !body.empty();
    if (!std::all_of(body.begin(), body.end(), only_waits)) return false;
  }
  return any;
}

bool same_exprs(const Op& a, const Op& b) {
  return std::equal(a.exprs.begin(), a.exprs.end(), b.exprs.begin(), b.exprs.end(),
                    [](const Expr& x, const Expr& y) { return x.same(y); });
}

bool same_waits(const Op& a, const Op& b) {
  return a.code == b.code && a.symbol == b.symbol && a.var == b.var && same_exprs(a, b) &&
         std::equal(a.bodies.begin(), a.bodies.end(), b.bodies.begin(), b.bodies.end(),
                    [](const Block& x, const Block& y) {
                      return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_waits);
                    });
}

// Neither memory, tables included, nor other agents see anything of it but slots that are passed.
bool in_registers(const Op& op) {
  switch (op.code) {
    case OpCode::kLet:
    case OpCode::kFill:
    case OpCode::kUnary:
    case OpCode::kBinary:
    case OpCode::kCast:
    case OpCode::kTranspose:
    case OpCode::kBroadcast:
    case OpCode::kReduce:
    case OpCode::kDot:
    case OpCode::kDotAsync:
    case OpCode::kAwait:
    case OpCode::kPipeGet:
    case OpCode::kPipeRelease:
    case OpCode::kLoop:
    case OpCode::kWhen:
      break;
    default:
      return false;
  }
  return std::none_of(op.exprs.begin(), op.exprs.end(), uses_table) &&
         std::all_of(op.bodies.begin(), op.bodies.end(), [](const Block& body) {
           return std::all_of(body.begin(), body.end(), in_registers);
         });
}

bool passes(const Op& op, int pipe) {
  bool here = (op.code == OpCode::kPipePut || op.code == OpCode::kPipeGet) && op.symbol == pipe;
  return here || std::any_of(op.bodies.begin(), op.bodies.end(), [&](const Block& body) {
           return std::any_of(body.begin(), body.end(),
                              [&](const Op& inner) { return passes(inner, pipe); });
         });
}

std::vector<const Op*> passing(const Block& block, int pipe) {
  std::vector<const Op*> out;
  for (const Op& op : block) {
    if (passes(op, pipe)) out.push_back(&op);
  }
  return out;
}

// Whether a slot is got with it however often its loop goes round, which it does.
bool gets_surely(const Op& op, int pipe) {
  auto gets = [&](const Op& o) { return o.code == OpCode::kPipeGet && o.symbol == pipe; };
  if (op.code != OpCode::kLoop) return gets(op);
  return (op.exprs[0] < op.exprs[1]).is_const(1) &&
         std::any_of(op.bodies[0].begin(), op.bodies[0].end(), gets);
}

bool begins_early(const AgentSite& site, int group) {
  const std::vector<int>& early = site.early.groups;
  return std::find(early.begin(), early.end(), group) != early.end();
}

}  // namespace

ElidedWaits::ElidedWaits(const AgentSite& site) {
  if (site.role == nullptr || site.plan == nullptr) return;
  const Role& role = *site.role;
  const RolePlan& plan = *site.plan;
  const Agent& agent = role.agents[static_cast<std::size_t>(site.agent_idx)];
  bool polls = plan.meeting != 0 || site.lane >= 0 || site.rings;
  if (agent.kind != AgentKind::kConsumer || polls || role.resource.cluster_size > 1) return;
  for (int i = 0; i < static_cast<int>(role.pipes.size()); ++i) {
    const Pipe& pipe = role.pipes[static_cast<std::size_t>(i)];
    const PipePlan& slots = plan.pipes[static_cast<std::size_t>(i)];
    // A thread that issues arrives; what is loaded ahead of the first waits has arrived before.
    bool issued = slots.by_tma() || slots.in_turn();
    if (pipe.consumer != site.agent_idx || !issued || begins_early(site, slots.group)) continue;
    pairs_.clear();
    const Agent& producer = role.agents[static_cast<std::size_t>(pipe.producer)];
    if (pair(agent.body, producer.body, i)) find(agent.body, i);
  }
}

// Whether both agents pass the pipe's slots in the same loops and branches, so that the one's gets
// are of the other's puts, place by place.
bool ElidedWaits::pair(const Block& gets, const Block& puts, int pipe) {
  pairs_[&gets] = &puts;
  std::vector<const Op*> c = passing(gets, pipe), p = passing(puts, pipe);
  return std::equal(c.begin(), c.end(), p.begin(), p.end(), [&](const Op* get, const Op* put) {
    if (get->code == OpCode::kPipeGet) return put->code == OpCode::kPipePut;
    bool alike = get->code == put->code && get->var == put->var && same_exprs(*get, *put) &&
                 get->bodies.size() == put->bodies.size();
    for (std::size_t b = 0; alike && b < get->bodies.size(); ++b) {
      alike = pair(get->bodies[b], put->bodies[b], pipe);
    }
    return alike;
  });
}

void ElidedWaits::find(const Block& gets, int pipe) {
  for (std::size_t i = 0; i < gets.size(); ++i) {
    for (const Block& body : gets[i].bodies) {
      if (passes(gets[i], pipe)) find(body, pipe);
    }
    if (!only_waits(gets[i])) continue;
    auto after = std::find_if(
        gets.begin() + static_cast<std::ptrdiff_t>(i), gets.end(),
        [&](const Op& op) { return passes(op, pipe) || (!in_registers(op) && !only_waits(op)); });
    if (after == gets.end() || !in_registers(*after) || !gets_surely(*after, pipe)) continue;
    if (!made_before(gets[i], gets, *after, pipe)) continue;
    waits_.insert(&gets[i]);
    tellers_.insert(&*after);
  }
}

// Whether the producer makes the wait ahead of what it puts where the consumer gets `teller`.
bool ElidedWaits::made_before(const Op& wait, const Block& gets, const Op& teller, int pipe) const {
  const Block& puts = *pairs_.at(&gets);
  std::vector<const Op*> c = passing(gets, pipe), p = passing(puts, pipe);
  const Op* put = p[static_cast<std::size_t>(std::find(c.begin(), c.end(), &teller) - c.begin())];
  return std::any_of(puts.data(), put, [&](const Op& op) { return same_waits(op, wait); });
}

}  // namespace stretto
