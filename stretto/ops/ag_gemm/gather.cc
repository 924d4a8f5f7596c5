#include "stretto/ops/ag_gemm/gather.h"

#include <algorithm>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

Index channel_of(const Gathered& g, const Index& owner, const Index& block) {
  return owner * g.transfers.num_channels() + g.transfers.channel_of(block);
}

void say_ready(ProgramBuilder& p, const Gathered& g) {
  p.on_start([&] {
    p.loop(g.world_size - 1,
           [&](const Index& i) { p.notify(g.ready, (p.rank() + 1 + i) % g.world_size); });
  });
}

// Zero SMs: copy queues fetch the peers' rows, those of the next rank first. Queue q has the peers
// q + 1, q + 1 + Q, ... after this rank, so that one queue alone counts what a peer sent.
void pull_rows(ProgramBuilder& p, int num_queues, const Gathered& g) {
  auto done = p.signal("done");  // per rank: it has read all of mine
  std::int64_t peers = g.world_size - 1, blocks = g.transfers.num_blocks();
  std::int64_t queues = num_queues;
  std::int64_t rounds = ceil_div(peers, queues);

  p.role("gather", Resource::copy_engine(num_queues), p.range(rounds * blocks * queues),
         [&](const Tile& t) {
           Index offset = p.let("offset", t.index / (blocks * queues) * queues + t.index % queues);
           Index owner = p.let("owner", (p.rank() + 1 + offset) % g.world_size);
           Index block = p.let("block", t.index / queues % blocks);
           p.when(offset < peers, [&] {
             p.wait(g.ready, owner);
             for (const Gathered::Part& part : g.parts) {
               Transfer rows = transfer(g.transfers, part, owner, block);
               p.rank_copy_data(rows.from.on(owner), rows.to);
             }
             p.notify(g.arrived[channel_of(g, owner, block)], p.rank());
             p.when(block == blocks - 1, [&] { p.notify(done, owner); });
           });
         });
  p.on_end([&] {  // the caller may overwrite its rows once every rank has read them
    p.loop(peers, [&](const Index& i) { p.wait(done, (p.rank() + 1 + i) % g.world_size); });
  });
}

// SMs or copy queues write the own rows to every peer, first to the rank that needs them next,
// which is the one before this.
void push_rows(ProgramBuilder& p, Gather gather, int num_workers, std::int64_t group_blocks,
               const Gathered& g) {
  const std::int64_t peers = g.world_size - 1, blocks = g.transfers.num_blocks();
  const std::int64_t groups = ceil_div(blocks, group_blocks);
  Resource workers =
      gather == Gather::kSend ? Resource::copy_engine(num_workers) : Resource::sms(num_workers);
  p.role("push", workers, p.grid(groups * peers, group_blocks, 1, 1), [&](const Tile& t) {
    Index nth = groups == 1 ? t.m : t.m % peers;
    Index block = groups == 1 ? t.n : p.let("block", t.m / peers * group_blocks + t.n);
    Index peer = p.let("peer", (p.rank() + g.world_size - 1 - nth) % g.world_size);
    auto push = [&] {
      p.wait(g.ready, peer);
      for (const Gathered::Part& part : g.parts) {
        Transfer rows = transfer(g.transfers, part, p.rank(), block);
        p.put(rows.to.on(peer), rows.from);
      }
      p.notify(g.arrived[channel_of(g, p.rank(), block)], peer);
    };
    blocks % group_blocks == 0 ? push() : p.when(block < blocks, push);
  });
}

}  // namespace

const char* name(Gather gather) {
  constexpr const char* kNames[] = {"pull", "send", "push"};
  return kNames[static_cast<std::size_t>(gather)];
}

Transfer transfer(const RowRuns& runs, const Gathered::Part& part, const Index& owner,
                  const Index& block) {
  std::int64_t count = runs.block_rows();
  Index row = block * count, first = runs.first_row(owner), end = runs.num_rows(owner);
  return {.from = part.own.tile({row, 0}, count, part.cols).until_row(end),
          .to = part.full.tile({first + row, 0}, count, part.cols).until_row(first + end)};
}

void gather_rows(ProgramBuilder& p, Gather gather, int num_workers, const Gathered& g) {
  say_ready(p, g);
  if (gather == Gather::kPull) {
    pull_rows(p, num_workers, g);
  } else {
    push_rows(p, gather, num_workers, g.transfers.num_blocks(), g);
  }
}

void gather_groups(ProgramBuilder& p, Gather gather, int num_workers, std::int64_t group_blocks,
                   const Gathered& g) {
  STRETTO_CHECK(gather != Gather::kPull, "groups of blocks are pushed");
  say_ready(p, g);
  push_rows(p, gather, num_workers, std::min(group_blocks, g.transfers.num_blocks()), g);
}

void wait_for_rows(ProgramBuilder& p, const Gathered& g, const Index& owner, const Index& row,
                   std::int64_t count) {
  const RowRuns& runs = g.transfers;
  std::int64_t per_channel = runs.rows_per_channel();
  Index last = min((row + count - 1) / per_channel, Index(runs.num_channels() - 1));
  p.loop(row / per_channel, last + 1, [&](const Index& channel) {
    p.wait(g.arrived[owner * runs.num_channels() + channel], runs.blocks_in(channel));
  });
}

}  // namespace stretto
