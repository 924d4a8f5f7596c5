// Programs whose rows a table deals out, proved once for every table that keeps the contract. The
// reference is to look at every table, one by one. If these fail, either routing that keeps its
// contract may corrupt memory, or programs are refused that are right for every routing.
#include "stretto/proof/table_cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/expand.h"
#include "stretto/proof/prove.h"

namespace stretto::table_cells_test {
namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kParts = 3, kRows = 4, kCols = 2;

using Table = std::vector<std::int64_t>;

// One table for all of them, per rank.
class Given : public TableWitness {
 public:
  explicit Given(std::vector<Table> tables) : tables_(std::move(tables)) {}
  std::int64_t value(int rank, int, std::span<const std::int64_t> index) const override {
    return tables_[static_cast<std::size_t>(rank)].at(static_cast<std::size_t>(index[0]));
  }
  std::string name() const override { return "given"; }

 private:
  std::vector<Table> tables_;
};

// Whether the program is right for every pair of the ranks' tables, one pair at a time.
bool holds_for_all(const Program& program, const std::vector<Table>& tables) {
  return std::all_of(tables.begin(), tables.end(), [&](const Table& a) {
    return std::all_of(tables.begin(), tables.end(), [&](const Table& b) {
      Given given({a, b});
      return !prove(program, {.tables = &given}).rejected();
    });
  });
}

// All partitions of `rows` into kParts parts.
std::vector<Table> partitions(std::int64_t rows) {
  std::vector<Table> all;
  for (std::int64_t a = 0; a <= rows; ++a) {
    for (std::int64_t b = a; b <= rows; ++b) all.push_back({0, a, b, rows});
  }
  return all;
}

std::vector<Table> permutations(std::int64_t n) {
  Table table(static_cast<std::size_t>(n));
  std::iota(table.begin(), table.end(), 0);
  std::vector<Table> all;
  do {
    all.push_back(table);
  } while (std::next_permutation(table.begin(), table.end()));
  return all;
}

// What a mixture of experts does with sorted tokens: part i is fetched, then used, by two roles.
struct Routed {
  Contract contract{ContractKind::kPartition, 0, 0};  // hi 0: one past the rows
  bool wait = true;
  std::int64_t waits_for = 0, uses = 0, ends = 1;  // parts further than the own
  std::int64_t tile_rows = kRows;
  bool loops = false;  // over tiles of a part
  // Where it has tiles: to its last instead of the most that there may be, or so many rows further.
  std::optional<std::int64_t> to_last = {};
  std::int64_t skips = 0;      // tiles
  bool asks = false;           // whether there are rows before it stores
  std::int64_t num_rows = -1;  // -1: an extent up to kRows
};

Program routed(const Routed& o) {
  ProgramBuilder p("routed", kWorld);
  Index m = o.num_rows < 0 ? p.extent("m", kRows) : Index(o.num_rows);
  Contract contract = o.contract;
  if (contract.hi.is_const(0)) contract.hi = m + 1;
  auto offsets = p.table("offsets", {kParts + 1}, contract);
  auto in = p.input("in", DType::kF32, {m, kCols}, Space::kSymmetric);
  auto full = p.buffer("full", DType::kF32, {m, kCols});
  auto out = p.output("out", DType::kF32, {m, kCols});
  auto arrived = p.signal("arrived", kParts);
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("fetch", Resource::copy_engine(), p.range(kParts), [&](const Tile& t) {
    Index row = p.read(offsets, {t.index}), end = p.read(offsets, {t.index + 1});
    p.wait_all(ready);
    p.copy(full.tile({row, 0}, kRows, kCols).until_row(end),
           in.on(1 - p.rank()).tile({row, 0}, kRows, kCols).until_row(end));
    p.notify(arrived[t.index], p.rank());
    p.when(t.index == kParts - 1, [&] { p.notify_all(done); });
  });
  p.role("use", Resource::sms(2), p.range(kParts), [&](const Tile& t) {
    Index part = p.let("part", (t.index + o.uses) % kParts);
    Index row = p.read(offsets, {part});
    Index end = p.read(offsets, {min(part + o.ends, kParts)});
    if (o.wait) p.wait(arrived[(t.index + o.waits_for) % kParts]);
    auto use = [&](const Index& from) {
      auto store = [&] {
        p.store(out.tile({from, 0}, o.tile_rows, kCols).until_row(end),
                p.load(full.tile({from, 0}, o.tile_rows, kCols).until_row(end)));
      };
      o.asks ? p.when(from < end, store) : store();
    };
    Index tiles = ceil_div(m, o.tile_rows);
    if (o.to_last) tiles = ceil_div(end - row + *o.to_last, o.tile_rows);
    if (o.loops) {
      p.loop(tiles, [&](const Index& i) { use(row + (i + o.skips) * o.tile_rows); });
    } else {
      use(row);
    }
  });
  p.on_end([&] { p.wait_all(done); });
  return run_pipeline(p.finish());
}

void expect_proved_for_every_table(const Program& program) {
  ProofResult r = prove(program);
  EXPECT_TRUE(r.proved()) << r.report;
  EXPECT_TRUE(r.stats.every_table) << r.report;
}

void expect_refused(const Program& program, FindingKind kind, const std::string& words) {
  ProofResult r = prove(program);
  ASSERT_TRUE(r.rejected()) << "accepted a broken program";
  EXPECT_EQ(r.findings[0].kind, kind) << r.report;
  EXPECT_NE(r.report.find(words), std::string::npos) << r.report;
}

TEST(TableCells, RoutingByAPartitionIsProvedForEveryTable) {
  const std::vector<Routed> kRight = {
      {},
      {.asks = true},
      {.tile_rows = 2, .loops = true},
      {.tile_rows = 3, .loops = true, .asks = true},
      {.waits_for = 1, .uses = 1},
      {.tile_rows = 2, .loops = true, .to_last = 0},
      {.tile_rows = 3, .loops = true, .to_last = 0, .asks = true},
      {.tile_rows = 2, .loops = true, .to_last = 3},
      {.tile_rows = 2, .loops = true, .to_last = 1, .asks = true},
  };
  for (Routed o : kRight) {
    expect_proved_for_every_table(routed(o));
    for (o.num_rows = 0; o.num_rows <= kRows; ++o.num_rows) {
      EXPECT_TRUE(holds_for_all(routed(o), partitions(o.num_rows))) << o.num_rows;
    }
  }
}

TEST(TableCells, WhatIsWrongForOneTableIsRefused) {
  struct Broken {
    Routed routed;
    FindingKind kind;
    const char* words;
  };
  const std::vector<Broken> kBroken = {
      {{.wait = false}, FindingKind::kRace, "'full'"},
      {{.waits_for = 1}, FindingKind::kRace, "'full'"},
      {{.uses = 1}, FindingKind::kRace, "'full'"},
      {{.ends = 2}, FindingKind::kRace, "'full'"},
      {{.tile_rows = kRows - 1}, FindingKind::kOutput, "never written"},
      {{.tile_rows = 1, .asks = true}, FindingKind::kOutput, "never written"},
      {{.tile_rows = 2, .loops = true, .to_last = -1}, FindingKind::kOutput, "never written"},
      {{.tile_rows = 1, .loops = true, .to_last = -1, .asks = true},
       FindingKind::kOutput,
       "never written"},
      {{.tile_rows = 2, .loops = true, .to_last = 0, .skips = 1},
       FindingKind::kOutput,
       "never written"},
      {{.wait = false, .tile_rows = 2, .loops = true, .to_last = 0}, FindingKind::kRace, "'full'"},
      {{.ends = 2, .tile_rows = 2, .loops = true, .to_last = 0}, FindingKind::kRace, "'full'"},
  };
  for (Broken b : kBroken) {
    expect_refused(routed(b.routed), b.kind, b.words);
    b.routed.num_rows = kRows;
    EXPECT_FALSE(holds_for_all(routed(b.routed), partitions(kRows))) << "meant to be broken";
  }
}

// The mutants of the contract: the same program with less promised.
TEST(TableCells, ALesserContractIsRefused) {
  expect_refused(routed({.contract = {ContractKind::kRange, 0, 0}}), FindingKind::kOutput, "'out'");
  expect_refused(routed({.contract = {ContractKind::kAscending, 0, 0}}), FindingKind::kOutput,
                 "never written");
  expect_refused(routed({.contract = {ContractKind::kPartition, 1, 0}}), FindingKind::kOutput,
                 "never written");
  expect_refused(routed({.contract = {ContractKind::kPartition, 0, kRows}}), FindingKind::kOutput,
                 "never written");
  Program program = routed({});
  program.tensors[static_cast<std::size_t>(program.find_tensor("offsets"))].contract = {};
  expect_refused(program, FindingKind::kIllFormed, "contract");
}

// Parts that come and go with the size cannot be compared from launch to launch.
TEST(TableCells, PartsAreTheSameAtAllSizes) {
  auto pieces = [](bool fixed) {
    ProgramBuilder p("pieces", kWorld);
    Index m = p.extent("m", kRows);
    Index n = fixed ? Index(kParts) : m;
    auto offsets = p.table("offsets", {n + 1}, {ContractKind::kPartition, 0, m + 1});
    auto out = p.output("out", DType::kF32, {m, kCols});
    p.role("fill", Resource::sms(1), p.range(n), [&](const Tile& t) {
      Slice part = out.tile({p.read(offsets, {t.index}), 0}, kRows, kCols);
      p.store(part.until_row(p.read(offsets, {t.index + 1})), p.zeros(DType::kF32, kRows, kCols));
    });
    return run_pipeline(p.finish());
  };
  expect_proved_for_every_table(pieces(true));
  EXPECT_FALSE(prove(pieces(false)).stats.every_table);
}

// Ranks that agree on nothing reach into each other's rows.
TEST(TableCells, AnotherRanksRowsAreAllOfThem) {
  auto exchange = [](bool fenced) {
    ProgramBuilder p("exchange", kWorld);
    auto offsets = p.table("offsets", {kParts + 1}, {ContractKind::kPartition, 0, kRows + 1});
    auto in = p.input("in", DType::kF32, {kRows, kCols});
    auto inbox = p.buffer("inbox", DType::kF32, {kRows, kCols}, {.space = Space::kSymmetric});
    auto out = p.output("out", DType::kF32, {kRows, kCols});
    auto stored = p.signal("stored", kParts), seen = p.signal("seen");
    auto part_of = [&](const TensorRef& tensor, const Tile& t) {
      return tensor.tile({p.read(offsets, {t.index}), 0}, kRows, kCols)
          .until_row(p.read(offsets, {t.index + 1}));
    };
    p.role("store", Resource::sms(1), p.range(kParts), [&](const Tile& t) {
      p.store(part_of(inbox, t), p.load(part_of(in, t)));
      p.notify(stored[t.index], 1 - p.rank());
    });
    p.role("peek", Resource::sms(1), p.range(kParts), [&](const Tile& t) {
      if (fenced) {
        p.loop(kParts, [&](const Index& i) { p.wait(stored[i]); });
      } else {
        p.wait(stored[t.index]);
      }
      p.store(part_of(out, t), p.load(part_of(inbox.on(1 - p.rank()), t)));
      p.when(t.index == kParts - 1, [&] { p.notify(seen, 1 - p.rank()); });
    });
    p.on_end([&] { p.wait(seen, 1 - p.rank()); });
    return run_pipeline(p.finish());
  };
  expect_proved_for_every_table(exchange(true));
  EXPECT_TRUE(holds_for_all(exchange(true), partitions(kRows)));
  expect_refused(exchange(false), FindingKind::kRace, "'inbox'");
  EXPECT_FALSE(holds_for_all(exchange(false), partitions(kRows)));
}

// Rows stored in an order that a table gives, and fetched again.
struct Shuffled {
  ContractKind contract = ContractKind::kPermutation;
  std::int64_t blocks = kParts, block = 2, rows = 2;  // entries, their distance, tile height
  std::int64_t num_rows = 6;
  std::int64_t fetches = 0;  // the block so many entries further
};

Program shuffled(const Shuffled& o) {
  ProgramBuilder p("shuffled", kWorld);
  auto order = p.table("order", {kParts}, {o.contract, 0, kParts});
  auto in = p.input("in", DType::kF32, {o.num_rows, kCols});
  auto mixed = p.buffer("mixed", DType::kF32, {o.num_rows, kCols});
  auto out = p.output("out", DType::kF32, {o.num_rows, kCols});
  auto stored = p.signal("stored", kParts);
  p.role("store", Resource::sms(2), p.range(o.blocks), [&](const Tile& t) {
    Index to = p.read(order, {t.index});
    p.store(mixed.tile({to * o.block, 0}, o.rows, kCols),
            p.load(in.tile({t.index * o.block, 0}, o.rows, kCols)));
    p.notify(stored[t.index], p.rank());
  });
  p.role("fetch", Resource::sms(1), p.range(o.blocks), [&](const Tile& t) {
    Index from = p.read(order, {(t.index + o.fetches) % kParts});
    p.wait(stored[t.index]);
    p.store(out.tile({from * o.block, 0}, o.rows, kCols),
            p.load(mixed.tile({from * o.block, 0}, o.rows, kCols)));
  });
  return run_pipeline(p.finish());
}

TEST(TableCells, PermutedBlocksAreProvedForEveryTable) {
  const std::vector<Shuffled> kRight = {
      {}, {.num_rows = 5}, {.block = 1, .rows = 1, .num_rows = 3}};
  for (const Shuffled& o : kRight) {
    expect_proved_for_every_table(shuffled(o));
    EXPECT_TRUE(holds_for_all(shuffled(o), permutations(kParts)));
  }
}

TEST(TableCells, BlocksThatMayMeetAreRefused) {
  expect_refused(shuffled({.contract = ContractKind::kRange}), FindingKind::kRace, "'mixed'");
  expect_refused(shuffled({.contract = ContractKind::kAscending}), FindingKind::kRace, "'mixed'");
  const std::vector<Shuffled> kBroken = {
      {.rows = 3}, {.rows = 1}, {.num_rows = 7}, {.blocks = kParts - 1}, {.fetches = 1}};
  for (const Shuffled& o : kBroken) {
    EXPECT_FALSE(holds_for_all(shuffled(o), permutations(kParts))) << "meant to be broken";
    ProofResult r = prove(shuffled(o));
    EXPECT_TRUE(r.rejected()) << r.report;
  }
}

// Rows stored where the entries of a permutation say, or nowhere, and fetched again from there: in
// a tensor of slots, or in pages of kPage slots for each of two heads.
struct Scattered {
  ContractKind contract = ContractKind::kPermutation;
  bool paged = true, named = false;      // by the page, and that under a name
  std::int64_t heads = 2, stored = 2;    // of a page; of a row
  std::int64_t fetches = 0, digits = 0;  // by the entry so many further; its place in the page
  bool asks = false;                     // whether a row goes anywhere
};

constexpr std::int64_t kPage = 2, kSlots = 4;

Program scattered(const Scattered& o) {
  ProgramBuilder p("scattered", kWorld);
  auto slots = p.table("slots", {kParts}, {o.contract, -1, kSlots});
  auto in = p.input("in", DType::kF32, {o.stored, kParts, kCols});
  auto kept = o.paged ? p.buffer("kept", DType::kF32, {kSlots / kPage * o.heads, kPage, kCols})
                      : p.buffer("kept", DType::kF32, {kSlots * o.heads, kCols});
  auto out = p.output("out", DType::kF32, {kParts, o.stored, kCols});
  auto stored = p.signal("stored", kParts);
  auto place = [&](const Index& entry) {
    Index slot = p.let("slot", p.read(slots, {entry}));
    if (!o.paged) return kept.tile({slot * o.heads, 0}, o.stored, kCols);
    Index other = p.let("other", p.read(slots, {(entry + o.digits) % kParts}));
    Index page = slot / kPage * o.heads, row = (o.digits > 0 ? other : slot) % kPage;
    if (o.named) page = p.let("page", page), row = p.let("row", row);
    return kept.tile({page, row, 0}, o.stored, kCols).rows_along(0);
  };
  p.role("store", Resource::sms(2), p.range(kParts), [&](const Tile& t) {
    auto store = [&] {
      p.store(place(t.index), p.load(in.tile({0, t.index, 0}, o.stored, kCols).rows_along(0)));
    };
    o.asks ? p.when(p.read(slots, {t.index}) >= 0, store) : store();
    p.notify(stored[t.index], p.rank());
  });
  p.role("fetch", Resource::sms(1), p.range(kParts), [&](const Tile& t) {
    p.wait(stored[t.index]);
    p.store(out.tile({t.index, 0, 0}, o.stored, kCols),
            p.load(place((t.index + o.fetches) % kParts)));
  });
  return run_pipeline(p.finish());
}

// All that name no slot twice.
std::vector<Table> distinct_tables() {
  std::vector<Table> all;
  for (std::int64_t a = -1; a < kSlots; ++a) {
    for (std::int64_t b = -1; b < kSlots; ++b) {
      for (std::int64_t c = -1; c < kSlots; ++c) {
        bool twice = (a >= 0 && (a == b || a == c)) || (b >= 0 && b == c);
        if (!twice) all.push_back({a, b, c});
      }
    }
  }
  return all;
}

TEST(TableCells, SlotsThatDifferAreProvedForEveryTable) {
  const std::vector<Scattered> kRight = {
      {},
      {.named = true},
      {.heads = 3, .stored = 2},
      {.heads = 1, .stored = 1},
      {.paged = false},
      {.paged = false, .heads = 1, .stored = 1},
  };
  for (const Scattered& o : kRight) {
    expect_proved_for_every_table(scattered(o));
    EXPECT_TRUE(holds_for_all(scattered(o), distinct_tables()));
  }
}

TEST(TableCells, SlotsThatMayMeetAreRefused) {
  expect_refused(scattered({.contract = ContractKind::kRange}), FindingKind::kRace, "'kept'");
  expect_refused(scattered({.contract = ContractKind::kAscending}), FindingKind::kRace, "'kept'");
  const std::vector<Scattered> kBroken = {{.heads = 1},
                                          {.fetches = 1},
                                          {.digits = 1},
                                          {.named = true, .digits = 1},
                                          {.paged = false, .heads = 1},
                                          {.paged = false, .fetches = 1}};
  for (const Scattered& o : kBroken) {
    EXPECT_FALSE(holds_for_all(scattered(o), distinct_tables())) << "meant to be broken";
    ProofResult r = prove(scattered(o));
    EXPECT_TRUE(r.rejected()) << r.report;
  }
}

// A slot that no entry names was not written, so what reads all of them is not covered.
TEST(TableCells, EntriesMayLeaveSlotsOut) {
  ProgramBuilder p("left_out", 1);
  auto slots = p.table("slots", {kParts}, {ContractKind::kPermutation, 0, kSlots});
  auto kept = p.buffer("kept", DType::kF32, {kSlots, kCols});
  auto out = p.output("out", DType::kF32, {kSlots, kCols});
  p.role("store", Resource::sms(1), p.range(kParts), [&](const Tile& t) {
    p.store(kept.tile({p.read(slots, {t.index}), 0}, 1, kCols), p.zeros(DType::kF32, 1, kCols));
    p.when(t.index == kParts - 1, [&] {
      p.worker_fence();
      p.store(out.tile({0, 0}, kSlots, kCols), p.load(kept.tile({0, 0}, kSlots, kCols)));
    });
  });
  ProofResult r = prove(run_pipeline(p.finish()));
  EXPECT_TRUE(r.rejected()) << r.report;
}

// Rows that are fetched from where a partition deals them out, whose bounds have one name or two.
Program pulls(bool second_names) {
  ProgramBuilder p("pulls", kWorld);
  auto x = p.input("x", DType::kF32, {kRows, kCols}, Space::kSymmetric);
  auto to = p.table("to", {kWorld + 1}, {ContractKind::kPartition, 0, kRows + 1});
  auto y = p.output("y", DType::kF32, {kRows, kCols});
  auto ready = p.signal("ready"), done = p.signal("done");
  p.on_start([&] { p.notify_all(ready); });
  p.role("pull", Resource::sms(2), p.range(kWorld), [&](const Tile& t) {
    Index begin = p.read(to, {t.index}), end = p.read(to, {t.index + 1});
    if (second_names) begin = p.let("begin", begin), end = p.let("end", end);
    p.wait(ready, t.index);
    p.store(y.tile({begin, 0}, kRows, kCols).until_row(end),
            p.load(x.on(t.index).tile({begin, 0}, kRows, kCols).until_row(end)));
    p.notify(done, t.index);
  });
  p.on_end([&] { p.wait_all(done); });
  return run_pipeline(p.finish());
}

TEST(TableCells, EntriesMayHaveSecondNames) {
  for (bool second_names : {false, true}) {
    ProofResult r = prove(pulls(second_names));
    EXPECT_TRUE(r.proved()) << r.report;
    EXPECT_TRUE(r.stats.every_table) << r.stats.sampled_because;
  }
}

}  // namespace
}  // namespace stretto::table_cells_test
