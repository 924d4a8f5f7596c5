#include "stretto/passes/take_turns.h"

#include <fmt/format.h>

#include "stretto/ir/refuse.h"
#include "stretto/passes/substitute_vars.h"

namespace stretto {
namespace {

constexpr int kThreads = 128;  // of a consumer: one warpgroup

void use_pipes(Block& block, int offset) {
  for (Op& op : block) {
    if (op.code >= OpCode::kPipePut && op.code <= OpCode::kPipeRelease) {
      op.symbol += offset;
    }
    for (Block& body : op.bodies) use_pipes(body, offset);
  }
}

// Loops and lets of a copy get variables of their own.
void rename_vars(Program& program, Block& block, const std::string& suffix,
                 std::vector<Expr>& replacement) {
  for (Op& op : block) {
    if (op.code == OpCode::kLoop || op.code == OpCode::kLet) {
      Var var = program.vars[static_cast<std::size_t>(op.var)];
      var.name += suffix;
      auto renamed = static_cast<int>(program.vars.size());
      program.vars.push_back(std::move(var));
      replacement[static_cast<std::size_t>(op.var)] = Expr::var(renamed);
      op.var = renamed;
    }
    for (Block& body : op.bodies) rename_vars(program, body, suffix, replacement);
  }
}

// The body on the tile that the worker would come to, one after the other: of worker w in round r,
// whose tile is r * workers + w, tile (r * consumers + turn) * workers + w, where there is such a
// tile.
Op on_tile(Program& program, const Role& role, const Agent& agent, int turn) {
  int workers = role.resource.num_workers;
  Expr t = Expr::var(role.tile_var);
  Expr tile = t / workers * (workers * role.resource.num_consumers) + turn * workers + t % workers;
  std::vector<Expr> replacement(program.vars.size());
  replacement[static_cast<std::size_t>(role.tile_var)] = tile;
  Op guarded{.code = OpCode::kWhen, .exprs = {tile < role.num_tiles}, .loc = role.loc};
  guarded.bodies = {agent.body, Block{}};
  if (turn > 0) {
    std::string suffix = fmt::format("_{}_{}", agent.name, turn);
    rename_vars(program, guarded.bodies[0], suffix, replacement);
  }
  substitute_vars(guarded.bodies[0], replacement);
  use_pipes(guarded.bodies[0], turn * static_cast<int>(role.pipes.size()));
  return guarded;
}

bool is_split_without_barriers(const Role& role) {
  return role.agents.size() == 2 && role.agents[0].kind == AgentKind::kProducer &&
         role.agents[1].kind == AgentKind::kConsumer && role.barriers.empty();
}

void divide(Program& program, Role& role) {
  int consumers = role.resource.num_consumers;
  Agent producer = role.agents[0];
  producer.body.clear();
  std::vector<Agent> agents;
  std::vector<Pipe> pipes;
  for (int turn = 0; turn < consumers; ++turn) {
    producer.body.push_back(on_tile(program, role, role.agents[0], turn));
    Agent consumer = role.agents[1];
    consumer.name = fmt::format("{}_{}", consumer.name, turn);
    consumer.num_threads = kThreads;
    consumer.body = {on_tile(program, role, role.agents[1], turn)};
    agents.push_back(std::move(consumer));
    for (int i = 0; i < static_cast<int>(role.pipes.size()); ++i) {
      Pipe pipe = role.pipes[static_cast<std::size_t>(i)];
      pipe.name = fmt::format("{}_{}", pipe.name, turn);
      pipe.consumer = 1 + turn;
      pipe.shares = turn == 0 ? -1 : i;
      pipes.push_back(std::move(pipe));
    }
  }
  agents.insert(agents.begin(), std::move(producer));
  int workers = role.resource.num_workers;
  role.num_tiles = ceil_div(role.num_tiles, Expr(workers * consumers)) * workers;
  role.agents = std::move(agents);
  role.pipes = std::move(pipes);
}

}  // namespace

Program take_turns(Program program) {
  for (Role& role : program.roles) {
    if (role.resource.num_consumers == 1) continue;
    if (!is_split_without_barriers(role)) {
      refuse(program, role, "num_consumers", role.resource.num_consumers, "it was not split");
    }
    divide(program, role);
  }
  return program;
}

}  // namespace stretto
