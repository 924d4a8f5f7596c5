// Programs whose tiles wait by a table, and what every table makes of them, for the tests of the
// proof.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/prove.h"

namespace stretto::table_routing {

constexpr int kWorld = 2;
constexpr std::int64_t kTiles = 2, kRows = 2, kCols = 2;

using Table = std::vector<std::int64_t>;

// Entries of every table, one after the other, per rank.
class Given : public TableWitness {
 public:
  Given(const Program& program, std::vector<Table> entries) : entries_(std::move(entries)) {
    std::int64_t next = 0;
    for (std::size_t t = 0; t < program.tensors.size(); ++t) {
      first_.push_back(next);
      if (program.tensors[t].contract.kind != ContractKind::kNone) {
        next += program.tensors[t].shape[0].const_value();
      }
    }
  }
  std::int64_t value(int rank, int tensor, std::span<const std::int64_t> index) const override {
    auto entry = first_[static_cast<std::size_t>(tensor)] + index[0];
    return entries_[static_cast<std::size_t>(rank)].at(static_cast<std::size_t>(entry));
  }
  std::string name() const override { return "given"; }

 private:
  std::vector<Table> entries_;
  std::vector<std::int64_t> first_;
};

// All values of the tables' entries, whose contracts are ranges.
inline std::vector<Table> all_tables(const Program& program) {
  std::vector<Table> all = {{}};
  for (const Tensor& tensor : program.tensors) {
    if (tensor.contract.kind == ContractKind::kNone) continue;
    for (std::int64_t i = 0; i < tensor.shape[0].const_value(); ++i) {
      std::vector<Table> longer;
      for (const Table& table : all) {
        for (std::int64_t v = tensor.contract.lo.const_value();
             v < tensor.contract.hi.const_value(); ++v) {
          longer.push_back(table);
          longer.back().push_back(v);
        }
      }
      all = std::move(longer);
    }
  }
  return all;
}

inline bool holds_for_all(const Program& program) {
  std::vector<Table> tables = all_tables(program);
  return std::all_of(tables.begin(), tables.end(), [&](const Table& a) {
    return std::all_of(tables.begin(), tables.end(), [&](const Table& b) {
      Given given(program, {a, b});
      return !prove(program, {.tables = &given}).rejected();
    });
  });
}

// Tile t of "use" reads the shard of the rank that `source[t]` names.
struct Gather {
  bool staged = true;  // copied here first, by a role that says when; false: read where it is
  bool wait = true;
  std::int64_t waits_for = 0;       // entries further than the own
  std::int64_t off = 0;             // what is waited for, further than the entry says
  std::int64_t threshold = 1;       // of that wait
  bool under_condition = false;     // a loop over the ranks that asks for each
  bool in_scratch = false;          // by way of a buffer that the tile alone uses
  bool waits_first = true;          // false: after the read
  bool hands_back = true;           // readers of other ranks' memory say when they are done
  bool tells_source_alone = false;  // and tell nobody else
};

inline Program gather(const Gather& o) {
  ProgramBuilder p("gather", kWorld);
  auto source = p.table("source", {kTiles}, {ContractKind::kRange, 0, kWorld});
  auto in = p.input("in", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto full = p.buffer("full", DType::kF32, {kWorld, kRows, kCols});
  auto scratch = p.buffer("scratch", DType::kF32, {kTiles, kRows, kCols});
  auto out = p.output("out", DType::kF32, {kTiles, kRows, kCols});
  auto arrived = p.signal("arrived", kWorld);
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  if (o.staged) {
    p.role("fetch", Resource::copy_engine(), p.range(kWorld), [&](const Tile& t) {
      p.wait(ready, t.index);
      p.copy(full.tile({t.index, 0, 0}, kRows, kCols), in.on(t.index).tile({0, 0}, kRows, kCols));
      p.notify(arrived[t.index], p.rank());
      p.notify(done, t.index);
    });
  }
  p.role("use", Resource::sms(1), p.range(kTiles), [&](const Tile& t) {
    Index owner = p.read(source, {t.index});
    Index asked = p.read(source, {(t.index + o.waits_for) % kTiles});
    auto wait = [&](const Index& rank) {
      o.staged ? p.wait(arrived[rank], o.threshold) : p.wait(ready, rank);
    };
    auto wait_all = [&] {
      if (!o.wait) return;
      if (o.under_condition) {
        p.loop(kWorld,
               [&](const Index& r) { p.when(asked == r, [&] { wait((r + o.off) % kWorld); }); });
      } else {
        wait((asked + o.off) % kWorld);
      }
    };
    if (o.waits_first) wait_all();
    Value x = p.load(o.staged ? full.tile({owner, 0, 0}, kRows, kCols)
                              : in.on(owner).tile({0, 0}, kRows, kCols));
    if (!o.waits_first) wait_all();
    if (o.in_scratch) {
      p.store(scratch.tile({t.index, 0, 0}, kRows, kCols), x);
      p.worker_fence();
      x = p.load(scratch.tile({t.index, 0, 0}, kRows, kCols));
    }
    p.store(out.tile({t.index, 0, 0}, kRows, kCols), x);
    if (!o.staged && o.hands_back) {
      o.tells_source_alone ? p.notify(done, owner) : p.notify_all(done);
    }
  });
  p.on_end([&] {
    if (o.hands_back) {
      p.loop(kWorld, [&](const Index& r) { p.wait(done[r], o.staged ? 1 : kTiles); });
    }
  });
  return run_pipeline(p.finish());
}

}  // namespace stretto::table_routing
