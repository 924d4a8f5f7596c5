// Edits that change nothing about what may happen when must not cost a user the proof: without
// that, a correct kernel is refused and waits are added until it is accepted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "stretto/base/at.h"
#include "stretto/base/test_seed.h"
#include "stretto/ir/tables.h"
#include "stretto/ir/verifier.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/mutation/run_mutants.h"
#include "stretto/proof/mutation/site.h"

namespace stretto {
namespace {

Op make_op(OpCode code, std::vector<Expr> exprs = {}) {
  return {.code = code, .exprs = std::move(exprs), .loc = {"harmless_test.cc", __LINE__}};
}

int add_var(Program& p, VarKind kind) {
  p.vars.push_back({fmt::format("extra{}", p.vars.size()), kind});
  return static_cast<int>(p.vars.size()) - 1;
}

std::vector<Agent*> agents_of(Program& p) {
  std::vector<Agent*> out = {&p.on_start, &p.on_end};
  for (Role& role : p.roles) {
    for (Agent& agent : role.agents) out.push_back(&agent);
  }
  return out;
}

// Rewrites every block from the inside out.
void for_each_block(Block& block, const std::function<void(Block&)>& rewrite) {
  for (Op& op : block) {
    for (Block& body : op.bodies) for_each_block(body, rewrite);
  }
  rewrite(block);
}
void for_each_block(Program& p, const std::function<void(Block&)>& rewrite) {
  for (Agent* agent : agents_of(p)) for_each_block(agent->body, rewrite);
}

// --- the edits: false where the program has nothing to edit ---

bool repeat_waits(Program& p) {
  bool any = false;
  for_each_block(p, [&](Block& block) {
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i].code != OpCode::kWait) continue;
      Op twin = block[i];
      block.insert(block.begin() + static_cast<std::ptrdiff_t>(i++), twin);
      any = true;
    }
  });
  return any;
}

bool wait_for_nothing(Program& p) {
  if (p.signals.empty()) return false;
  for (Agent* agent : agents_of(p)) {
    Op wait = make_op(OpCode::kWait, {0, 0});
    wait.symbol = 0;
    agent->body.insert(agent->body.begin(), wait);
  }
  return true;
}

// A wait that has been passed once is satisfied for the rest of the launch.
bool wait_again_at_the_end(Program& p) {
  bool any = false;
  for_each_block(p, [&](Block& block) {
    for (std::size_t i = block.size(); i-- > 0;) {
      if (block[i].code != OpCode::kWait) continue;
      block.push_back(block[i]);
      any = true;
      return;
    }
  });
  return any;
}

bool reads_made_table(const Program& p, const Expr& expr) {
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kTable && is_made_table(p.tensors[static_cast<std::size_t>(n.value)])) {
    return true;
  }
  return std::any_of(n.args.begin(), n.args.end(),
                     [&](const Expr& arg) { return reads_made_table(p, arg); });
}

// Straight after the index variables it needs; those that are entries of a table of the launch
// need a wait themselves.
bool waits_first(Program& p) {
  bool any = false;
  for_each_block(p, [&](Block& block) {
    bool moves = std::none_of(block.begin(), block.end(), [&](const Op& op) {
      return op.code == OpCode::kLet && reads_made_table(p, op.exprs[0]);
    });
    if (!moves) return;
    auto early = std::stable_partition(block.begin(), block.end(),
                                       [](const Op& op) { return op.code == OpCode::kLet; });
    auto waits = std::stable_partition(early, block.end(),
                                       [](const Op& op) { return op.code == OpCode::kWait; });
    any |= waits != early && waits != block.end();
  });
  return any;
}

bool split_notifies(Program& p) {
  for_each_block(p, [&](Block& block) {
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i].code == OpCode::kWait) block[i].exprs[1] = block[i].exprs[1] * 2;
      if (block[i].code != OpCode::kNotify) continue;
      Op twin = block[i];
      block.insert(block.begin() + static_cast<std::ptrdiff_t>(i++), twin);
    }
  });
  return !p.signals.empty();
}

bool double_amounts(Program& p) {
  for_each_block(p, [&](Block& block) {
    for (Op& op : block) {
      if (op.code == OpCode::kWait) op.exprs[1] = op.exprs[1] * 2;
      if (op.code == OpCode::kNotify) op.exprs[2] = op.exprs[2] * 2;
    }
  });
  return !p.signals.empty();
}

bool shift_channels(Program& p) {
  for_each_block(p, [&](Block& block) {
    for (Op& op : block) {
      if (op.code != OpCode::kWait && op.code != OpCode::kNotify) continue;
      op.exprs[0] = op.exprs[0] + 1;
    }
  });
  for (Signal& s : p.signals) {
    ++s.num_channels;
    s.per_source = false;
  }
  return !p.signals.empty();
}

bool notify_nobody(Program& p) {
  p.signals.push_back({.name = "unused_signal"});
  for (Role& role : p.roles) {
    Op notify = make_op(OpCode::kNotify, {0, 0, 1});
    notify.symbol = static_cast<int>(p.signals.size()) - 1;
    role.agents[0].body.push_back(notify);
  }
  // Tiles are as many as the extents say, notifies must not be.
  for (const Role& role : p.roles) {
    if (!role.num_tiles.is_const()) return false;
  }
  return true;
}

// One that works beside another stands after it.
bool reverse_roles(Program& p) {
  auto beside = [](const Role& role) { return role.resource.beside >= 0; };
  if (std::any_of(p.roles.begin(), p.roles.end(), beside)) return false;
  std::reverse(p.roles.begin(), p.roles.end());
  return p.roles.size() > 1;
}

// A tile of the role waits for others, of this rank or of others.
bool waits_for_itself(Role& role) {
  std::set<int> notified, waited;
  for (Agent& agent : role.agents) {
    for_each_block(agent.body, [&](Block& block) {
      for (const Op& op : block) {
        if (op.code == OpCode::kNotify) notified.insert(op.symbol);
        if (op.code == OpCode::kWait) waited.insert(op.symbol);
      }
    });
  }
  return std::any_of(waited.begin(), waited.end(), [&](int s) { return notified.count(s) != 0; });
}

// Queues may count on the order of what they copy, and so may who waits for earlier tiles.
// Whether a worker notifies of as many tiles as it has had, which goes by how they are dealt out:
// worker w of n has tiles w, w + n, ... in this order.
bool counts_own_tiles(Program& p) {
  bool counts = false;
  for_each_block(p, [&](Block& block) {
    counts |= std::any_of(block.begin(), block.end(), [](const Op& op) {
      return op.code == OpCode::kNotify && !op.exprs[2].is_const();
    });
  });
  return counts;
}

bool reverse_tiles(Program& p) {
  if (counts_own_tiles(p)) return false;
  for (Role& role : p.roles) {
    if (role.resource.kind == ResourceKind::kCopyEngine || waits_for_itself(role)) continue;
    int var = add_var(p, VarKind::kLet);
    Op let = make_op(OpCode::kLet, {role.num_tiles - 1 - Expr::var(role.tile_var)});
    let.var = var;
    std::vector<Expr> replace(p.vars.size());
    replace[at(role.tile_var)] = Expr::var(var);
    auto swap_in = [&](Expr& e) {
      if (e.has_value()) e = substitute(e, replace);
    };
    for (Agent& agent : role.agents) {
      for_each_block(agent.body, [&](Block& block) {
        for (Op& op : block) {
          for (Expr& e : op.exprs) swap_in(e);
          for (auto* region : {&op.region, &op.region2}) {
            if (!*region) continue;
            for (Expr& e : (*region)->origin) swap_in(e);
            for (Expr* e : {&(*region)->rank, &(*region)->row_end, &(*region)->col_end}) {
              swap_in(*e);
            }
          }
        }
      });
      agent.body.insert(agent.body.begin(), let);
    }
  }
  return true;
}

bool more_workers(Program& p) {
  if (counts_own_tiles(p)) return false;
  for (Role& role : p.roles) {
    if (role.resource.kind != ResourceKind::kCopyEngine) role.resource.num_workers += 3;
  }
  return true;
}

bool one_worker(Program& p) {
  for (Role& role : p.roles) role.resource.num_workers = 1;
  return true;
}

bool more_slots(Program& p) {
  bool any = false;
  for (Tensor& t : p.tensors) {
    if (t.kind != TensorKind::kBuffer || t.num_slots < 2) continue;
    ++t.num_slots;
    any = true;
  }
  return any;
}

bool two_slots(Program& p) {
  bool any = false;
  for (Tensor& t : p.tensors) {
    if (t.kind != TensorKind::kBuffer || t.num_slots > 1) continue;
    t.num_slots = 2;
    any = true;
  }
  return any;
}

bool rename_everything(Program& p) {
  p.name += "_x";
  for (auto& t : p.tensors) t.name += "_x";
  for (auto& s : p.signals) s.name += "_x";
  for (auto& m : p.maps) m.name += "_x";
  for (auto& r : p.roles) r.name += "_x";
  for (auto& v : p.vars) v.name += "_x";
  return true;
}

bool extra_let(Program& p) {
  for (Agent* agent : agents_of(p)) {
    Op let = make_op(OpCode::kLet, {Expr::var(0) * 3 + 1});
    let.var = add_var(p, VarKind::kLet);
    agent->body.insert(agent->body.begin(), let);
  }
  return true;
}

bool fences_everywhere(Program& p) {
  for_each_block(p, [](Block& block) { block.push_back(make_op(OpCode::kFence)); });
  return true;
}

bool extra_independent_role(Program& p) {
  p.tensors.push_back({.name = "scratch", .shape = {4, 4}, .kind = TensorKind::kBuffer});
  Role role{.name = "idle", .resource = Resource::sms(2), .num_tiles = 4};
  role.tile_var = add_var(p, VarKind::kTile);
  role.agents.push_back({.name = "body", .values = {{DType::kF32, 1, 4}}});
  Op fill = make_op(OpCode::kFill), store = make_op(OpCode::kStore);
  fill.result = 0;
  store.operands = {0};
  store.region = Region{.tensor = static_cast<int>(p.tensors.size()) - 1,
                        .origin = {Expr::var(role.tile_var), 0},
                        .row_dim = 0,
                        .col_dim = 1,
                        .cols = 4};
  role.agents[0].body = {fill, store};
  p.roles.push_back(role);
  return true;
}

struct HarmlessEdit {
  const char* name;
  bool (*apply)(Program&);
};
constexpr HarmlessEdit kEdits[] = {
    {"every wait twice", repeat_waits},
    {"waits for nothing", wait_for_nothing},
    {"wait again at the end", wait_again_at_the_end},
    {"waits moved to the front", waits_first},
    {"notifies split in two", split_notifies},
    {"amounts and thresholds doubled", double_amounts},
    {"channels shifted by one", shift_channels},
    {"a notify that nobody waits for", notify_nobody},
    {"roles in reverse order", reverse_roles},
    {"tiles in reverse order", reverse_tiles},
    {"more workers", more_workers},
    {"one worker", one_worker},
    {"more slots", more_slots},
    {"two slots instead of one", two_slots},
    {"everything renamed", rename_everything},
    {"an index variable nobody uses", extra_let},
    {"fences everywhere", fences_everywhere},
    {"a role that has nothing to do with the others", extra_independent_role},
};

TEST(HarmlessEdits, OfEveryOperatorAreAccepted) {
  int accepted = 0;
  for (const OperatorInfo& op : drawn_of("harmless edits", catalog(), 2)) {
    Program original = run_pipeline(op.program(op.shapes(3).back()));
    bool synchronises = !original.signals.empty();
    for (const HarmlessEdit& edit : kEdits) {
      Program edited = original;
      // A tile of its waits for what the next one tells: it takes two workers.
      if (edit.apply == one_worker && op.name == std::string("ep_moe_layer")) continue;
      if (!synchronises || !edit.apply(edited)) continue;
      SCOPED_TRACE(fmt::format("{}: {}", op.name, edit.name));
      ASSERT_NO_THROW(verify(edited));
      ProofResult result = prove(edited, mutant_options());
      EXPECT_FALSE(result.rejected()) << result.report;
      accepted += result.rejected() ? 0 : 1;
    }
  }
  EXPECT_GE(accepted, every_case_is_drawn() ? 30 : 10);
}

}  // namespace
}  // namespace stretto
