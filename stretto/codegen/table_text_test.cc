// Kernels that read tables. A user who loses this learns of a wrong routing table from memory that
// was overwritten.
#include "stretto/codegen/table_text.h"

#include <gtest/gtest.h>

#include <string>

#include "stretto/codegen/kernel.h"
#include "stretto/lang/program_builder.h"
#include "stretto/passes/pipeline.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::table_text_test {
namespace {

constexpr std::int64_t kParts = 5, kCols = 64;

// Rows dealt out by a table: part i of `offsets`, or row order[i].
Program dealt_out(const Contract& contract, bool is_64_bit = false) {
  ProgramBuilder p("dealt_out", 1);
  Index m = p.extent("m", 40);
  Contract c = contract;
  if (c.kind == ContractKind::kPartition) c.hi = m + 1;
  auto table = p.table("routes", {kParts + 1}, c);
  auto in = p.input("in", DType::kF32, {m, kCols});
  auto out = p.state("out", DType::kF32, {m, kCols});
  p.role("move", Resource::sms(2), p.range(kParts), [&](const Tile& t) {
    Index row = p.read(table, {t.index}), end = p.read(table, {t.index + 1});
    p.store(out.tile({row, 0}, 8, kCols).until_row(end), p.load(in.tile({row, 0}, 8, kCols)));
  });
  Program program = run_pipeline(p.finish());
  if (is_64_bit) program.tensors[0].dtype = DType::kI64;
  return program;
}

void expect_contains(const GeneratedKernel& kernel, const std::string& words) {
  EXPECT_NE(kernel.source.find(words), std::string::npos) << words << "\n" << kernel.source;
}

TEST(TableText, EveryContractIsCheckedAtTheStart) {
  struct Expected {
    Contract contract;
    const char* check;
  };
  const Expected kExpected[] = {
      {{ContractKind::kRange, 0, 9}, ", 6, 0, 9, false, false, false, false}"},
      {{ContractKind::kPermutation, 0, 6}, ", 6, 0, 6, false, false, true, false}"},
      {{ContractKind::kAscending, 2, 30}, ", 6, 2, 30, true, false, false, false}"},
      {{ContractKind::kPartition, 0, 0}, "_m + 1), true, true, false, false}"},
      {{ContractKind::kPermutation, -1, 40}, ", 6, -1, 40, false, false, false, true}"},
  };
  for (const auto& [contract, check] : kExpected) {
    Program program = dealt_out(contract);
    GeneratedKernel kernel = generate_kernel(program);
    expect_contains(kernel, "check_table<i32>(p.tensors[0][p.rank], {1 * i64(6)");
    expect_contains(kernel, check);
    expect_contains(kernel, "input_entry(p.tensors[0][p.rank]");
    ASSERT_EQ(kernel.launch.sites.size(), 1u);
    EXPECT_EQ(kernel.launch.sites[0].table, 0);
    if (!cuda::has_nvrtc()) continue;
    cuda::KernelImage image =
        cuda::compile_cuda(kernel.expanded, "dealt_out.cu", {.use_cache = false});
    EXPECT_FALSE(image.cubin.empty()) << image.log;
  }
  expect_contains(generate_kernel(dealt_out({ContractKind::kRange, 0, 9}, true)), "<i64>");
}

TEST(TableText, ATableWhoseTilesPickRowsIsChecked) {
  ProgramBuilder p("gather", 1);
  auto table = p.table("routes", {8, 1}, {ContractKind::kRange, -1, 40});
  auto in = p.input("in", DType::kF32, {40, kCols});
  auto out = p.output("out", DType::kF32, {8, kCols});
  p.role("move", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value rows = p.load(table.tile({0, 0}, 8, 1));
    p.store(out.tile({0, 0}, 8, kCols), p.load_rows(in.tile({0, 0}, 8, kCols), rows));
  });
  expect_contains(generate_kernel(run_pipeline(p.finish())), ", -1, 40, false, false, false,");
}

// Rows that a table names, which another role makes.
GeneratedKernel kernel_of_made_table(const BufferOptions& options) {
  ProgramBuilder p("made", 1);
  auto ids = p.input("ids", DType::kI32, {8});
  auto table = p.made_table("routes", {8}, {ContractKind::kRange, 0, 40}, options);
  auto in = p.input("in", DType::kF32, {40, kCols});
  auto out = p.output("out", DType::kF32, {8, kCols});
  auto made = p.signal("made", 1);
  p.role("make", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(table.tile({0}, 1, 8), p.load(ids.tile({0}, 1, 8)));
    p.notify(made[0], p.rank());
  });
  p.role("move", Resource::sms(2), p.range(8), [&](const Tile& t) {
    p.wait(made[0]);
    Index row = p.read(table, {t.index});
    p.store(out.tile({t.index, 0}, 1, kCols), p.load(in.tile({row, 0}, 1, kCols)));
  });
  return generate_kernel(run_pipeline(p.finish()));
}

// Nothing can be checked at the start of a table that is not there yet.
TEST(TableText, EntriesOfATableOfTheLaunchAreCheckedWhereTheyAreRead) {
  GeneratedKernel kernel = kernel_of_made_table({});
  EXPECT_EQ(kernel.source.find("check_table<"), std::string::npos) << kernel.source;
  expect_contains(kernel, "constexpr int site_of_table_1 = 0;  // 'routes'");
  expect_contains(kernel, "made_entry<i32>(p.tensors[1][p.rank], ");
  expect_contains(kernel, ", 0, 40, p.watch, site_of_table_1)");
  EXPECT_EQ(kernel.launch.sites.at(0).table, 1);
}

// Otherwise every second launch goes by what the one before was told.
TEST(TableText, EntriesOfATableWithSlotsAreThoseOfTheLaunch) {
  GeneratedKernel kernel = kernel_of_made_table({.num_slots = 2});
  expect_contains(kernel, "made_entry<i32>(p.tensors[1][p.rank] + epoch % 2 * 32, ");
}

// Products of the tiles that are there, by the weights that a table names; `stages`: through pipes.
GeneratedKernel kernel_of_turns(int stages) {
  constexpr std::int64_t kRows = 64, kWidth = 128, kTiles = 8;
  ProgramBuilder p("made", 1);
  auto ids = p.input("ids", DType::kI32, {kTiles});
  auto a = p.input("a", DType::kBF16, {kTiles * kRows, kWidth});
  auto b = p.input("b", DType::kBF16, {40, kWidth, kWidth});
  auto used = p.made_table("used", {1}, {ContractKind::kRange, 0, kTiles});
  auto experts = p.made_table("experts", {kTiles}, {ContractKind::kRange, 0, 40});
  auto out = p.state("out", DType::kBF16, {kTiles * kRows, kWidth});
  auto made = p.signal("made", 1);
  p.role("make", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(used.tile({0}, 1, 1), p.load(ids.tile({0}, 1, 1)));
    p.store(experts.tile({0}, 1, kTiles), p.load(ids.tile({0}, 1, kTiles)));
    p.notify(made[0], p.rank());
  });
  p.role("multiply", Resource::sms(2).pipelined(stages), p.range(kTiles), [&](const Tile& t) {
    p.wait(made[0]);
    p.when(t.index < p.read(used, {0}), [&] {
      Index expert = p.read(experts, {t.index});
      Value sum = p.zeros(DType::kF32, kRows, kWidth);
      p.loop(2, [&](const Index& k) {
        Value weight = p.load(b.tile({expert, 0, k * 64}, kWidth, 64)).T();
        sum = dot(sum, p.load(a.tile({t.index * kRows, k * 64}, kRows, 64)), weight);
      });
      p.store(out.tile({t.index * kRows, 0}, kRows, kWidth), cast(sum, DType::kBF16));
    });
  });
  return generate_kernel(run_pipeline(p.finish()));
}

// Turns that such an entry passes over, of which there may be many, take no trip to memory.
TEST(TableText, AnEntryOfEveryTileIsReadOnceAndItsWaitMadeOnce) {
  GeneratedKernel kernel = kernel_of_turns(2);
  expect_contains(kernel, "int kept_entry0 = kNotRead;");
  expect_contains(kernel, "if (kept_entry0 == kNotRead) kept_entry0 = int(made_entry<i32>(");
  expect_contains(kernel, "if ((waited >> 0 & 1) == 0) {");
  // That of one tile is its own.
  EXPECT_EQ(kernel.source.find("kept_entry1"), std::string::npos) << kernel.source;
  cuda::compile_cuda(kernel.expanded, "made.cu", {.use_cache = false});
}

// The proof counts on all threads meeting at each.
TEST(TableText, WaitsOfARoleThatIsNotSplitAreMadeInEveryTile) {
  GeneratedKernel kernel = kernel_of_turns(0);
  expect_contains(kernel, "if (kept_entry0 == kNotRead) kept_entry0 = int(made_entry<i32>(");
  EXPECT_EQ(kernel.source.find("waited >>"), std::string::npos) << kernel.source;
  cuda::compile_cuda(kernel.expanded, "made.cu", {.use_cache = false});
}

// Without such entries a wait is made in every tile.
TEST(TableText, WaitsAreKeptOnlyBesideEntriesOfEveryTile) {
  GeneratedKernel kernel = kernel_of_made_table({});
  EXPECT_EQ(kernel.source.find("waited"), std::string::npos) << kernel.source;
}

// Agents of a block that go by different entries wait for each other for ever: whoever has not seen
// what entries come of stores none.
TEST(TableText, EntriesAreNotStoredBehindAnAbortedWait) {
  ProgramBuilder p("made", 2);
  auto ids = p.buffer("ids", DType::kI32, {8}, {.space = Space::kSymmetric});
  auto own = p.input("own", DType::kI32, {8});
  auto table = p.made_table("routes", {8}, {ContractKind::kRange, 0, 40});
  auto out = p.output("out", DType::kI32, {8, 1});
  auto sent = p.signal("sent", 1), made = p.signal("made", 1);
  p.role("make", Resource::sms(1), p.range(1), [&](const Tile&) {
    Index peer = (p.rank() + 1) % 2;
    p.store(ids.on(peer).tile({0}, 1, 8), p.load(own.tile({0}, 1, 8)));
    p.notify(sent[0], peer);
    p.wait(sent[0]);
    p.store(table.tile({0}, 1, 8), p.load(ids.tile({0}, 1, 8)));
    p.notify(made[0], p.rank());
  });
  p.role("move", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.wait(made[0]);
    Index row = p.read(table, {0});
    p.when(row > 0, [&] { p.store(out.tile({0, 0}, 8, 1), p.zeros(DType::kI32, 8, 1)); });
  });
  GeneratedKernel kernel = generate_kernel(run_pipeline(p.finish()));
  const std::string& text = kernel.source;
  const std::string guarded = ")) store_box";
  std::size_t sends = text.find(guarded), waits = text.find("wait_acquire_sys(", sends);
  std::size_t makes = text.find(guarded, waits);
  ASSERT_NE(makes, std::string::npos) << text;
  EXPECT_EQ(text.rfind(guarded), makes) << "neither the peer's nor a table's";
  EXPECT_EQ(text.find("store_box"), sends + guarded.size() - 9) << "the peer's";
}

// Its owner may look at its memory once it has the fault (device/sm90/signal.h).
TEST(LossText, NothingIsStoredToOthersBehindAnAbortedWait) {
  auto of_ranks = [](int ranks) {
    ProgramBuilder p("passes_on", ranks);
    auto in = p.input("in", DType::kF32, {8, kCols});
    auto inbox =
        p.buffer("inbox", DType::kF32, {8, kCols}, {.space = Space::kSymmetric, .packet = true});
    auto outbox =
        p.buffer("outbox", DType::kF32, {8, kCols}, {.space = Space::kSymmetric, .packet = true});
    auto out = p.output("out", DType::kF32, {8, kCols});
    p.role("pass", Resource::sms(1), p.range(1), [&](const Tile&) {
      Index peer = (p.rank() + 1) % ranks;
      p.store_packet(inbox.on(peer).tile({0, 0}, 8, kCols), p.load(in.tile({0, 0}, 8, kCols)));
      Value came = p.load_packet(inbox.tile({0, 0}, 8, kCols));
      p.store_packet(outbox.on(peer).tile({0, 0}, 8, kCols), came);
      p.store(out.tile({0, 0}, 8, kCols), p.load_packet(outbox.tile({0, 0}, 8, kCols)));
    });
    return generate_kernel(run_pipeline(p.finish())).source;
  };
  const std::string two = of_ranks(2), one = of_ranks(1);
  std::size_t first = two.find(")) store_packets");
  ASSERT_NE(first, std::string::npos) << two;
  EXPECT_NE(two.find(")) store_packets", first + 1), std::string::npos) << two;
  EXPECT_EQ(two.find(")) store_box"), std::string::npos) << "the own rank's\n" << two;
  EXPECT_LT(two.find("abort_if_rank_has"), first) << "launches before";
  EXPECT_EQ(one.find("abort_if_rank_has"), std::string::npos) << "there are no others\n" << one;
}

TEST(TableText, AProgramWithoutTablesChecksNothing) {
  ProgramBuilder p("plain", 1);
  auto out = p.output("out", DType::kF32, {8, kCols});
  p.role("fill", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(out.tile({0, 0}, 8, kCols), p.zeros(DType::kF32, 8, kCols));
  });
  GeneratedKernel kernel = generate_kernel(run_pipeline(p.finish()));
  EXPECT_EQ(kernel.source.find("check_table<"), std::string::npos) << kernel.source;
}

TEST(TableText, ReportsNameTableEntryAndContract) {
  Program program = dealt_out({ContractKind::kAscending, 2, 30});
  EXPECT_EQ(describe_broken_table(program, 0, 3, -7),
            "table 'routes' breaks its contract (ascending 2, 30): entry 3 is -7");
}

}  // namespace
}  // namespace stretto::table_text_test
