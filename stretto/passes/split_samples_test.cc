#include "stretto/passes/split_samples.h"

#include <vector>

#include "stretto/lang/program_builder.h"

namespace stretto::split_samples {

Program gemm(const GemmOptions& options) {
  ProgramBuilder p("gemm", 1);
  Index k = p.extent("k", kK);
  auto a = p.input("a", DType::kBF16, {kM, k});
  auto b = p.input("b", DType::kBF16, {kN, k});
  auto g = p.input("g", DType::kBF16, {kN, k});
  auto c = p.output("c", DType::kF32, {kM, kN});
  p.role("gemm", Resource::sms(2).pipelined(options.num_stages).ping_pong(options.num_consumers),
         p.grid(c, 4, 4), [&](const Tile& t) {
           Value acc = p.zeros(DType::kF32, 4, 4), gate = p.zeros(DType::kF32, 4, 4);
           Index steps = p.let("steps", ceil_div(k, 8));
           p.loop(steps, [&](const Index& i) {
             Index col = p.let("col", i * 8);
             Value rows = p.load(a.tile({t.row, col}, 4, 8));
             if (options.keep_copies) rows = copy(rows);
             acc = dot(acc, rows, p.load(b.tile({t.col, col}, 4, 8)).T());
             if (options.two_products) {
               gate = dot(gate, rows, p.load(g.tile({t.col, col}, 4, 8)).T());
             }
           });
           if (options.two_products) acc = acc * gate;
           p.store(c.tile({t.row, t.col}, 4, 4), acc);
         });
  return p.finish();
}

Program ag_gemm(int world, int num_stages) {
  constexpr std::int64_t k = 20, n = 9, m_local = 5;
  std::int64_t m = m_local * world;
  ProgramBuilder p("ag_gemm", world);
  auto a = p.input("a", DType::kF32, {m_local, k}, Space::kSymmetric);
  auto b = p.input("b", DType::kF32, {n, k});
  auto full = p.buffer("full", DType::kF32, {m, k});
  auto c = p.output("c", DType::kF32, {m, n});
  auto rows = p.tile_map("rows", full, {.tile_rows = 3, .channels_per_rank = 2});
  auto here = p.signal("here", rows.channels());
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("gather", Resource::copy_engine(), rows.tiles().rotate_from(p.rank()), [&](const Tile& t) {
    p.wait(ready, t.owner);
    p.rank_copy_data(
        a.on(t.owner).tile({t.local_row, 0}, 3, k).until_row(t.local_row + t.row_end - t.row),
        full.tile({t.row, 0}, 3, k).until_row(t.row_end));
    p.producer_tile_notify(here, rows, t, NotifyMode::kLocal);
    p.notify(done, t.owner);
  });
  p.role("gemm", Resource::sms(2).pipelined(num_stages), p.grid(c, 4, 4).rotate_rows(p.rank()),
         [&](const Tile& t) {
           p.consumer_tile_wait(here, rows, t.row, t.row + 4);
           Value acc = p.zeros(DType::kF32, 4, 4);
           p.loop(ceil_div(k, 8), [&](const Index& i) {
             acc = dot(acc, p.load(full.tile({t.row, i * 8}, 4, 8)),
                       p.load(b.tile({t.col, i * 8}, 4, 8)).T());
           });
           p.store(c.tile({t.row, t.col}, 4, 4), acc);
         });
  p.on_end([&] { p.loop(world, [&](const Index& r) { p.wait(done[r], 2); }); });
  return p.finish();
}

Program attention(int num_stages, bool copied, DType values) {
  constexpr std::int64_t tokens = 22, dim = 8;
  ProgramBuilder p("attention", 1);
  Index m = p.extent("m", 7);
  Index past = p.scalar("past", tokens - 7);
  auto q = p.input("q", DType::kF32, {m, dim});
  auto k = p.state("k", DType::kF32, {tokens, dim});
  auto v = p.state("v", values, {tokens, dim});
  auto c = p.output("c", DType::kF32, {m, dim});
  p.role("attend", Resource::sms(2).pipelined(num_stages), p.grid(m, 1, 4, 1), [&](const Tile& t) {
    Index end = p.let("end", past + min(t.row + 4, m));
    Value query = p.load(q.tile({t.row, 0}, 4, dim));
    Value row = p.iota_rows(past + t.row, 4);
    Value peak = p.full(DType::kF32, 4, 1, -1e30);
    Value weight = p.zeros(DType::kF32, 4, 1);
    Value acc = p.zeros(DType::kF32, 4, dim);
    p.loop(0, ceil_div(end, 5), [&](const Index& j) {
      auto block = [&](const TensorRef& t) { return t.tile({j * 5, 0}, 5, dim).until_row(end); };
      Value scores = dot(p.zeros(DType::kF32, 4, 5), query, p.load(block(k)).T());
      Value seen = p.iota_cols(j * 5, 5) <= row;
      scores = where(seen, scores * 0.25, p.full(DType::kF32, 1, 1, -1e30));
      Value new_peak = maximum(peak, row_max(scores));
      Value shrink = exp(peak - new_peak);
      Value chances = where(seen, exp(scores - new_peak), p.zeros(DType::kF32, 1, 1));
      weight = weight * shrink + row_sum(chances);
      Value loaded = p.load(block(v));
      acc = dot(acc * shrink, cast(chances, values), copied ? copy(loaded) : loaded);
      peak = new_peak;
    });
    p.store(c.tile({t.row, 0}, 4, dim), acc / weight);
  });
  return p.finish();
}

Program residual(int num_stages) {
  ProgramBuilder p("residual", 1);
  Index steps = p.extent("steps", 2);
  auto in = p.input("in", DType::kF32, {8, 16});
  auto b = p.input("b", DType::kF32, {16, 4});
  auto x = p.buffer("x", DType::kF32, {8, 16});
  auto y = p.buffer("y", DType::kF32, {8, 4});
  auto c = p.output("c", DType::kF32, {8, 4});
  auto here = p.signal("here", 1);
  p.role("fill", Resource::sms(1), p.range(2), [&](const Tile& t) {
    p.store(x.tile({t.index * 4, 0}, 4, 16), p.load(in.tile({t.index * 4, 0}, 4, 16)));
    p.store(y.tile({t.index * 4, 0}, 4, 4), p.load(in.tile({t.index * 4, 0}, 4, 4)));
    p.notify(here[0], p.rank());
  });
  p.role("gemm", Resource::sms(1).pipelined(num_stages), p.grid(c, 4, 4), [&](const Tile& t) {
    p.wait(here[0], t.index + 1);
    Value acc = p.zeros(DType::kF32, 4, 4);
    p.loop(steps, [&](const Index& i) {
      acc = dot(acc, p.load(x.tile({t.row, i * 8}, 4, 8)), p.load(b.tile({i * 8, 0}, 8, 4)));
    });
    p.store(c.tile({t.row, t.col}, 4, 4), acc + p.load(y.tile({t.row, t.col}, 4, 4)));
  });
  return p.finish();
}

Program own_writes(bool fence) {
  ProgramBuilder p("own_writes", 1);
  auto b = p.input("b", DType::kF32, {8, 4});
  auto x = p.buffer("x", DType::kF32, {4, 8});
  auto c = p.output("c", DType::kF32, {4, 4});
  p.role("gemm", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    p.store(x.tile({0, 0}, 4, 8), p.full(DType::kF32, 4, 8, 2));
    if (fence) p.worker_fence();
    Value acc = p.zeros(DType::kF32, 4, 4);
    p.loop(1, [&](const Index&) {
      acc = dot(acc, p.load(x.tile({0, 0}, 4, 8)), p.load(b.tile({0, 0}, 8, 4)));
    });
    p.store(c.tile({0, 0}, 4, 4), acc);
  });
  return p.finish();
}

Program handed_on(int num_stages) {
  constexpr std::int64_t kRows = 8, kTiles = 2;
  ProgramBuilder p("handed_on", 1);
  auto x = p.input("x", DType::kF32, {kRows * kTiles, 8});
  auto b = p.input("b", DType::kF32, {16, 8});
  auto made = p.buffer("made", DType::kF32, {kRows * kTiles, 8});
  auto c = p.output("c", DType::kF32, {kRows * kTiles, 8});
  auto done = p.signal("done", kTiles);
  p.role("both", Resource::sms(2).pipelined(num_stages), p.range(2 * kTiles), [&](const Tile& t) {
    p.when(
        t.index < kTiles,
        [&] {
          Value row = p.load(x.tile({t.index * kRows, 0}, kRows, 8));
          p.store(made.tile({t.index * kRows, 0}, kRows, 8), row + row);
          p.notify(done[t.index], p.rank());
        },
        [&] {
          Index tile = p.let("later", max(t.index - kTiles, 0));
          p.wait(done[tile], 1);
          Value acc = p.zeros(DType::kF32, kRows, 8);
          p.loop(2, [&](const Index& i) {
            Value rows = p.load(made.tile({tile * kRows, 0}, kRows, 8));
            acc = dot(acc, rows, p.load(b.tile({i * 8, 0}, 8, 8)));
          });
          p.store(c.tile({tile * kRows, 0}, kRows, 8), acc);
          p.wait(done[tile], 1);
        });
  });
  return p.finish();
}

Program pushed(int world, int num_stages, std::int64_t first_peer) {
  constexpr std::int64_t kRows = 8, kSteps = 2;
  ProgramBuilder p("pushed", world);
  auto a = p.state("a", DType::kF32, {kRows * world, kSteps * 8}, Space::kSymmetric);
  auto b = p.input("b", DType::kF32, {8, kSteps * 8});
  auto c = p.output("c", DType::kF32, {kRows * world, 8});
  auto ready = p.signal("ready"), arrived = p.signal("arrived", world);
  p.on_start(
      [&] { p.loop(1, world, [&](const Index& i) { p.notify(ready, (p.rank() + i) % world); }); });
  p.role("both", Resource::sms(2).pipelined(num_stages), p.range(1 + world), [&](const Tile& t) {
    p.when(
        t.index < 1,
        [&] {
          Value rows = p.load(a.tile({0, 0}, kRows, kSteps * 8));
          p.loop(first_peer, world, [&](const Index& i) {
            Index peer = p.let("peer", (p.rank() + world - i) % world);
            p.when(i > 0, [&] { p.wait(ready, peer); });
            p.store(a.on(peer).tile({i * kRows, 0}, kRows, kSteps * 8), rows);
            p.notify(arrived[i], peer);
          });
        },
        [&] {
          Index source = p.let("source", max(t.index - 1, 0));
          p.when(source > 0, [&] { p.wait(arrived[source], 1); });
          Value acc = p.zeros(DType::kF32, kRows, 8);
          p.loop(kSteps, [&](const Index& i) {
            acc = dot(acc, p.load(a.tile({source * kRows, i * 8}, kRows, 8)),
                      p.load(b.tile({0, i * 8}, 8, 8)).T());
          });
          p.store(c.tile({source * kRows, 0}, kRows, 8), acc);
        });
  });
  p.on_end([&] { p.loop(1, world, [&](const Index& i) { p.wait(arrived[i], 1); }); });
  return p.finish();
}

Program picks_handed_on(int num_stages, bool waits) {
  constexpr std::int64_t kRows = 8;
  ProgramBuilder p("picks_handed_on", 1);
  auto x = p.input("x", DType::kF32, {kRows, 16});
  auto order = p.input("order", DType::kI32, {kRows, 1});
  auto b = p.input("b", DType::kF32, {16, 8});
  auto which = p.buffer("which", DType::kI32, {kRows, 1});
  auto c = p.output("c", DType::kF32, {kRows, 8});
  auto done = p.signal("done", 1);
  p.role("both", Resource::sms(2).pipelined(num_stages), p.range(2), [&](const Tile& t) {
    p.when(
        t.index < 1,
        [&] {
          p.store(which.tile({0, 0}, kRows, 1), p.load(order.tile({0, 0}, kRows, 1)));
          p.notify(done[0], p.rank());
        },
        [&] {
          if (waits) p.wait(done[0], 1);
          Value rows = p.load(which.tile({0, 0}, kRows, 1));
          Value acc = p.zeros(DType::kF32, kRows, 8);
          p.loop(2, [&](const Index& i) {
            Value picked = p.load_rows(x.tile({0, i * 8}, kRows, 8), rows);
            acc = dot(acc, picked, p.load(b.tile({i * 8, 0}, 8, 8)));
          });
          p.store(c.tile({0, 0}, kRows, 8), acc);
        });
  });
  return p.finish();
}

Program table_loop(bool changes) {
  ProgramBuilder p("table_loop", 1);
  auto steps = p.table("steps", {1}, {ContractKind::kRange, 0, 3});
  auto a = p.input("a", DType::kF32, {4, 16});
  auto c = p.output("c", DType::kF32, {4, 4});
  p.role("gemm", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    Index n = p.read(steps, {0});
    Value acc = p.zeros(DType::kF32, 4, 4);
    p.loop(n, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({0, i * 8}, 4, 8)), p.load(a.tile({0, i * 8}, 4, 8)).T());
    });
    p.store(c.tile({0, 0}, 4, 4), acc);
  });
  Program program = p.finish();
  if (changes) program.tensors[static_cast<std::size_t>(steps.idx())].kind = TensorKind::kState;
  return program;
}

Program packets(bool inputs) {
  ProgramBuilder p("packets", 1);
  auto a = inputs ? p.input("a", DType::kF32, {4, 8}) : p.buffer("a", DType::kF32, {4, 8}, {});
  auto box = p.buffer("box", DType::kF32, {4, 4}, {.num_slots = 2, .packet = true});
  auto c = p.output("c", DType::kF32, {4, 4});
  p.role("send", Resource::sms(1), p.range(1), [&](const Tile&) {
    if (!inputs) p.store(a.tile({0, 0}, 4, 8), p.full(DType::kF32, 4, 8, 2));
    p.store_packet(box.tile({0, 0}, 4, 4), p.full(DType::kF32, 4, 4, 1));
  });
  p.role("gemm", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    Value acc = copy(p.load_packet(box.tile({0, 0}, 4, 4)));
    p.loop(1, [&](const Index&) {
      acc = dot(acc, p.load(a.tile({0, 0}, 4, 8)), p.load(a.tile({0, 0}, 4, 8)).T());
    });
    p.store(c.tile({0, 0}, 4, 4), acc);
  });
  return p.finish();
}

Program no_dot() {
  ProgramBuilder p("no_dot", 1);
  auto a = p.input("a", DType::kF32, {4, 8});
  auto c = p.output("c", DType::kF32, {4, 8});
  p.role("add", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    p.loop(2, [&](const Index& i) {
      p.store(c.tile({2 * i, 0}, 2, 8), p.load(a.tile({2 * i, 0}, 2, 8)) + 1.0);
    });
  });
  return p.finish();
}

Program summed_rows(int num_stages) {
  constexpr std::int64_t kTokens = 6, kPicks = 3, kRows = 300;
  ProgramBuilder p("summed_rows", 1);
  auto y = p.input("y", DType::kBF16, {kRows, 16});
  auto which = p.table("which", {kTokens, kPicks}, {ContractKind::kRange, -1, kRows});
  auto share = p.input("share", DType::kF32, {kTokens, kPicks});
  auto old = p.input("old", DType::kBF16, {kTokens, 16});
  auto c = p.output("c", DType::kF32, {kTokens, 16});
  p.role("sum", Resource::sms(2).pipelined(num_stages), p.range(3), [&](const Tile& t) {
    p.loop(2, [&](const Index& i) {
      Index token = p.let("token", t.index * 2 + i);
      std::vector<Index> picked;
      std::vector<Value> shares;
      for (std::int64_t j = 0; j < kPicks; ++j) {
        picked.push_back(p.read(which, {token, j}));
        shares.push_back(p.load(share.tile({token, j}, 1, 1)));
      }
      Value sum = p.zeros(DType::kF32, 1, 16);
      for (std::size_t j = 0; j < picked.size(); ++j) {
        p.when(picked[j] >= 0, [&] {
          Value row = p.load(y.tile({picked[j], 0}, 1, 16));
          sum = sum + cast(row, DType::kF32) * shares[j];
        });
      }
      p.when(token >= 0, [&] {
        sum = sum + cast(p.load(old.tile({token, 0}, 1, 16)), DType::kF32);
      });
      p.store(c.tile({token, 0}, 1, 16), sum);
    });
  });
  return p.finish();
}

Program picked_by_pairs(int num_stages) {
  constexpr std::int64_t kTokens = 7, kRows = 20;
  ProgramBuilder p("picked_by_pairs", 1);
  auto a = p.input("a", DType::kF32, {kRows, 16});
  auto numbers = p.table("numbers", {2 * kTokens, 1}, {ContractKind::kRange, 0, kRows});
  auto c = p.output("c", DType::kF32, {kTokens, 16});
  auto integer = [&](const Index& value) { return p.splat(DType::kI32, value); };
  p.role("pick", Resource::sms(1).pipelined(num_stages), p.range(1), [&](const Tile&) {
    p.loop(4, [&](const Index& i) {
      Value token = p.iota_rows(i * 2, 2), exists = token < integer(kTokens);
      Value pair = where(exists, token * integer(2) + integer(1), integer(-1));
      Value row = p.load_rows(numbers.tile({0, 0}, 2, 1), pair);
      Value picked = p.load_rows(a.tile({0, 0}, 2, 16), where(exists, row, integer(-1)));
      p.store(c.tile({i * 2, 0}, 2, 16), where(exists, picked + picked, picked));
    });
  });
  return p.finish();
}

Program picked(int num_stages) {
  ProgramBuilder p("picked", 1);
  auto a = p.input("a", DType::kF32, {12, 8});
  auto rows = p.input("rows", DType::kI32, {8, 1});
  auto b = p.input("b", DType::kF32, {4, 8});
  auto scale = p.input("scale", DType::kF32, {8, 2});
  auto c = p.output("c", DType::kF32, {8, 4});
  p.role("gemm", Resource::sms(1).pipelined(num_stages), p.grid(c, 4, 4), [&](const Tile& t) {
    Value which = p.load(rows.tile({t.row, 0}, 4, 1));
    Value acc = p.zeros(DType::kF32, 4, 4);
    p.loop(2, [&](const Index& i) {
      Value of_rows = p.load(scale.tile({t.row, i}, 4, 1));
      Value left = p.load_rows(a.tile({0, i * 4}, 4, 4), which);
      Value part = p.zeros(DType::kF32, 4, 4);
      part = dot(part, left, p.load(b.tile({0, i * 4}, 4, 4)).T());
      acc = acc + part * of_rows;
    });
    p.store(c.tile({t.row, 0}, 4, 4), acc);
  });
  return p.finish();
}

Program grouped(int num_stages) {
  ProgramBuilder p("grouped", 1);
  auto group = p.table("group", {3}, {ContractKind::kRange, 0, 2});
  auto a = p.input("a", DType::kF32, {12, 8});
  auto b = p.input("b", DType::kF32, {2, 8, 4});
  auto c = p.output("c", DType::kF32, {12, 4});
  p.role("gemm", Resource::sms(1).pipelined(num_stages), p.grid(c, 4, 4), [&](const Tile& t) {
    Index g = p.read(group, {t.m});
    Value acc = p.zeros(DType::kF32, 4, 4);
    p.loop(2, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * 4}, 4, 4)), p.load(b.tile({g, i * 4, 0}, 4, 4)));
    });
    p.store(c.tile({t.row, 0}, 4, 4), acc);
  });
  return p.finish();
}

}  // namespace stretto::split_samples
