#include "stretto/proof/test_programs.h"

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"

namespace stretto::test_programs {
namespace {

Op* find(Block& block, const Matches& matches, int& n, Block*& holder) {
  for (Op& op : block) {
    if (matches(op) && n-- == 0) {
      holder = &block;
      return &op;
    }
    for (Block& body : op.bodies) {
      if (Op* found = find(body, matches, n, holder)) return found;
    }
  }
  return nullptr;
}

Matches is(const Program& program, const char* signal, OpCode code) {
  int symbol = program.find_signal(signal);
  return [symbol, code](const Op& op) { return op.code == code && op.symbol == symbol; };
}

}  // namespace

bool edit(Program& program, const Matches& matches, Edit how, int n) {
  Block* holder = nullptr;
  Op* op = find(program.on_start.body, matches, n, holder);
  for (Role& role : program.roles) {
    for (Agent& agent : role.agents) {
      if (op == nullptr) op = find(agent.body, matches, n, holder);
    }
  }
  if (op == nullptr) op = find(program.on_end.body, matches, n, holder);
  if (op == nullptr) return false;
  Expr& amount = op->exprs[op->code == OpCode::kWait ? 1 : 2];
  auto where = holder->begin() + (op - holder->data());
  switch (how) {
    case Edit::kDrop:
      holder->erase(where);
      break;
    case Edit::kDuplicate: {
      Op copy = *op;
      holder->insert(where, std::move(copy));
      break;
    }
    case Edit::kThresholdPlus:
      amount = amount + 1;
      break;
    case Edit::kThresholdMinus:
      amount = amount - 1;
      break;
    case Edit::kOtherChannel:
      op->exprs[0] = (op->exprs[0] + 1) %
                     Expr(program.signals[static_cast<std::size_t>(op->symbol)].num_channels);
      break;
  }
  return true;
}

Matches is_wait(const Program& program, const char* signal) {
  return is(program, signal, OpCode::kWait);
}
Matches is_notify(const Program& program, const char* signal) {
  return is(program, signal, OpCode::kNotify);
}

Program local_copy(int world) {
  ProgramBuilder p("local_copy", world);
  Index m = p.extent("m", 37);
  auto in = p.input("in", DType::kF32, {m, 6});
  auto out = p.output("out", DType::kF32, {m, 6});
  p.role("copy", Resource::sms(3), p.grid(out, 8, 4), [&](const Tile& t) {
    p.store(out.tile({t.row, t.col}, 8, 4), p.load(in.tile({t.row, t.col}, 8, 4)));
  });
  return run_pipeline(p.finish());
}

Program gather_then_store(int world) {
  ProgramBuilder p("gather_then_store", world);
  Index m = p.extent("m", 29);
  auto a = p.input("a", DType::kF32, {ceil_div(m, world), 5}, Space::kSymmetric);
  auto full = p.buffer("full", DType::kF32, {m, 5});
  auto c = p.output("c", DType::kF32, {m, 5});
  auto rows = p.tile_map("rows", full, {.tile_rows = 4, .channels_per_rank = 2});
  auto here = p.signal("here", rows.channels());
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", Resource::copy_engine(), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.wait(ready, t.owner);
    p.rank_copy_data(
        a.on(t.owner).tile({t.local_row, 0}, 4, 5).until_row(t.local_row + t.row_end - t.row),
        full.tile({t.row, 0}, 4, 5).until_row(t.row_end));
    p.producer_tile_notify(here, rows, t, NotifyMode::kLocal);
    p.notify(done, t.owner);
  });
  p.role("store", Resource::sms(2), p.grid(c, 6, 5), [&](const Tile& t) {
    p.consumer_tile_wait(here, rows, t.row, t.row + 6);
    p.store(c.tile({t.row, 0}, 6, 5), p.load(full.tile({t.row, 0}, 6, 5)));
  });
  Index tiles = rows.tiles().owned_by(p.rank()).count();
  p.on_end([&] { p.loop(world, [&](const Index& r) { p.wait(done[r], tiles); }); });
  return run_pipeline(p.finish());
}

Program exchange(int world, const ExchangeOptions& o) {
  ProgramBuilder p("exchange", world);
  auto in = p.input("in", DType::kF32, {4, 4});
  auto inbox = p.buffer("inbox", DType::kF32, {world, 4, 4},
                        {.space = Space::kSymmetric, .num_slots = o.num_slots});
  auto out = p.output("out", DType::kF32, {4, 4});
  auto sent = p.signal("sent", o.per_source ? world : 1);
  auto ack = p.signal("ack", world);
  int peers = o.all_to_all ? world : 1;
  auto channel = [&](const Index& sender) { return sent[o.per_source ? sender : Index(0)]; };
  p.role("push", Resource::sms(1), p.range(peers), [&](const Tile& t) {
    Index peer = p.let("peer", (p.rank() + 1 + t.index) % world);
    p.store(inbox.on(peer).tile({p.rank(), 0, 0}, 4, 4), p.load(in.tile({0, 0}, 4, 4)));
    p.notify(channel(p.rank()), peer);
  });
  p.role("sum", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value sum = p.zeros(DType::kF32, 4, 4);
    p.loop(peers, [&](const Index& i) {
      Index sender = p.let("sender", (p.rank() + 2 * world - 1 - i) % world);
      p.wait(channel(sender), o.per_source ? 1 : peers);
      sum = sum + p.load(inbox.tile({sender, 0, 0}, 4, 4));
      if (o.ack) p.notify(ack[p.rank()], sender);
    });
    p.store(out.tile({0, 0}, 4, 4), sum);
  });
  if (o.ack) {
    p.on_end(
        [&] { p.loop(peers, [&](const Index& i) { p.wait(ack[(p.rank() + 1 + i) % world]); }); });
  }
  return run_pipeline(p.finish());
}

Program packet_exchange(int world, int num_slots) {
  ProgramBuilder p("packet_exchange", world);
  auto in = p.input("in", DType::kF16, {4, 6});
  auto inbox = p.buffer("inbox", DType::kF16, {world, 4, 6},
                        {.space = Space::kSymmetric, .num_slots = num_slots, .packet = true});
  auto out = p.output("out", DType::kF32, {4, 6});
  p.role("push", Resource::sms(1), p.range(world), [&](const Tile& t) {
    Index peer = p.let("peer", (p.rank() + t.index) % world);
    p.store_packet(inbox.on(peer).tile({p.rank(), 0, 0}, 4, 6), p.load(in.tile({0, 0}, 4, 6)));
  });
  p.role("sum", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value sum = p.zeros(DType::kF32, 4, 6);
    p.loop(world, [&](const Index& r) {
      sum = sum + cast(p.load_packet(inbox.tile({r, 0, 0}, 4, 6)), DType::kF32);
    });
    p.store(out.tile({0, 0}, 4, 6), sum);
  });
  return run_pipeline(p.finish());
}

}  // namespace stretto::test_programs
