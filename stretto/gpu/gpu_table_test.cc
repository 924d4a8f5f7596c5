// Tables on a GPU: kept contracts give the right rows, a broken one ends the launch with the table
// and the entry. Needs one GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_instance.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/driver.h"

namespace stretto::gpu_table_test {
namespace {

constexpr std::int64_t kParts = 4, kRows = 24, kCols = 64;
constexpr std::int64_t kLong = 5003;  // entries, more than the threads of all blocks
using Table = std::vector<std::int32_t>;

// out = 2 * in, by parts of rows or, with a permutation, by blocks of them; another table says
// whence blocks come by its first entries, and nobody reads the rest.
Program doubled(ContractKind kind) {
  ProgramBuilder p("doubled", 1);
  bool parts = kind == ContractKind::kPartition, permutes = kind == ContractKind::kPermutation;
  auto table = parts ? p.table("offsets", {kParts + 1}, {kind, 0, kRows + 1})
                     : p.table("order", {permutes ? kParts : kLong}, {kind, 0, kParts});
  auto in = p.input("in", DType::kF32, {kRows, kCols});
  auto out = p.output("out", DType::kF32, {kRows, kCols});
  p.role("double", Resource::sms(3), p.range(kParts), [&](const Tile& t) {
    Index row = p.read(table, {t.index});
    auto box = [&](const TensorRef& tensor, const Index& block) {
      if (parts) {
        return tensor.tile({row, 0}, kRows, kCols).until_row(p.read(table, {t.index + 1}));
      }
      return tensor.tile({block * (kRows / kParts), 0}, kRows / kParts, kCols);
    };
    p.store(box(out, permutes ? row : t.index), p.load(box(in, row)) * 2.0);
  });
  return p.finish();
}

// Blocks that come whence the first of many entries say, of which some name nothing.
Program doubled_from_some() {
  ProgramBuilder p("doubled", 1);
  constexpr std::int64_t kBlock = kRows / kParts;
  auto order = p.table("order", {kLong}, {ContractKind::kPermutation, -2, 100 * kLong});
  auto in = p.input("in", DType::kF32, {kRows, kCols});
  auto out = p.output("out", DType::kF32, {kRows, kCols});
  p.role("double", Resource::sms(3), p.range(kParts), [&](const Tile& t) {
    Index block = p.read(order, {t.index}) % kParts;
    p.store(out.tile({t.index * kBlock, 0}, kBlock, kCols),
            p.load(in.tile({block * kBlock, 0}, kBlock, kCols)) * 2.0);
  });
  return p.finish();
}

// The same by blocks, whose order the launch copies into a table of its own.
Program doubled_in_own_order() {
  ProgramBuilder p("doubled", 1);
  constexpr std::int64_t kBlock = kRows / kParts;
  auto given = p.input("given", DType::kI32, {kParts});
  auto in = p.input("in", DType::kF32, {kRows, kCols});
  auto out = p.state("out", DType::kF32, {kRows, kCols});
  auto order = p.made_table("order", {kParts}, {ContractKind::kRange, 0, kParts});
  auto made = p.signal("made", 1), turn = p.signal("turn", kParts + 1);
  p.role("make", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(order.tile({0}, 1, kParts), p.load(given.tile({0}, 1, kParts)));
    p.notify(made[0], p.rank());
    p.notify(turn[0], p.rank());
  });
  // One after the other: two entries may name the same block.
  p.role("double", Resource::sms(3), p.range(kParts), [&](const Tile& t) {
    p.wait(made[0]);
    p.wait(turn[t.index]);
    Index row = p.read(order, {t.index}) * kBlock;
    p.store(out.tile({row, 0}, kBlock, kCols), p.load(in.tile({row, 0}, kBlock, kCols)) * 2.0);
    p.notify(turn[t.index + 1], p.rank());
  });
  return p.finish();
}

class GpuTables : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::has_driver() || cuda::num_devices() < 1) GTEST_SKIP() << "needs a GPU";
  }

  // "" after right results, the fault's text otherwise.
  static std::string run(ContractKind kind, const Table& entries) {
    return run(doubled(kind), entries);
  }
  static std::string run(const Program& program, const Table& entries) {
    GpuWorld world({.size = 1});
    GpuInstance instance(world, prove(lower(program)));
    SymmetricGpuMemory table = world.allocate(entries.size() * 4);
    SymmetricGpuMemory in = world.allocate(kRows * kCols * 4);
    SymmetricGpuMemory out = world.allocate(kRows * kCols * 4);
    std::vector<float> rows(kRows * kCols);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
    world.stream(0).upload(table.addresses()[0], entries.data(), entries.size() * 4);
    world.stream(0).upload(in.addresses()[0], rows.data(), rows.size() * 4);
    world.stream(0).fill_bytes(out.addresses()[0], 0xff, rows.size() * 4);
    try {
      Args args{
          .tensors = {{.on = table.addresses()}, {.on = in.addresses()}, {.on = out.addresses()}}};
      args.tensors.resize(program.tensors.size());  // what is left is the program's own
      instance.launch(args, {});
      instance.wait();
    } catch (const Fault& fault) {
      return fault.what();
    }
    std::vector<float> got(rows.size());
    world.stream(0).download(got.data(), out.addresses()[0], got.size() * 4);
    world.stream(0).synchronize();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], 2 * rows[i]) << i;
    return "";
  }

  static void expect_fault(ContractKind kind, const Table& entries, const std::string& words) {
    std::string report = run(kind, entries);
    EXPECT_NE(report.find(words), std::string::npos) << words << "\n" << report;
  }
};

TEST_F(GpuTables, TablesThatKeepTheirContractsAreFollowed) {
  EXPECT_EQ(run(ContractKind::kPartition, {0, 5, 5, 20, kRows}), "");
  EXPECT_EQ(run(ContractKind::kPartition, {0, 0, 0, 0, kRows}), "");
  EXPECT_EQ(run(ContractKind::kPermutation, {2, 0, 3, 1}), "");
}

TEST_F(GpuTables, BrokenContractsAreNamed) {
  const char* kOffsets = "table 'offsets' breaks its contract (partition 0, 25): ";
  auto says = [&](const char* what) { return kOffsets + std::string(what); };
  expect_fault(ContractKind::kPartition, {1, 5, 5, 20, kRows}, says("entry 0 is 1"));
  expect_fault(ContractKind::kPartition, {0, 5, 4, 20, kRows}, says("entry 2 is 4"));
  expect_fault(ContractKind::kPartition, {0, 5, 5, 20, 23}, says("entry 4 is 23"));
  expect_fault(ContractKind::kPartition, {0, 5, 5, 20, 1 << 30}, says("entry 4 is 1073741824"));
  expect_fault(ContractKind::kPermutation, {2, 0, 2, 1},
               "table 'order' breaks its contract (permutation 0, 4): entry ");
  expect_fault(ContractKind::kPermutation, {2, 0, -9, 1}, "entry 2 is -9");
}

TEST_F(GpuTables, EveryBlockChecksAPartOfALongTable) {
  Table kept(kLong, kParts - 1);
  for (std::int32_t i = 0; i < kParts; ++i) kept[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(run(ContractKind::kAscending, kept), "");
  for (std::size_t bad : {127, 128, 383, 384, 768, 2500, 5001, 5002}) {
    for (std::int32_t value : {2, -1}) {  // less than the one before; out of range, too
      Table entries = kept;
      entries[bad] = value;
      expect_fault(ContractKind::kAscending, entries,
                   "table 'order' breaks its contract (ascending 0, 4): entry " +
                       std::to_string(bad) + " is " + std::to_string(value));
    }
  }
}

TEST_F(GpuTables, EntriesThatNameTheSameAreFoundInALongTable) {
  Table kept(kLong);
  for (std::int32_t i = 0; i < kLong; ++i) {
    kept[static_cast<std::size_t>(i)] = i % 7 == 5 ? -1 - i % 2 : 100 * i;
  }
  for (std::int32_t i = 0; i < kParts; ++i) kept[static_cast<std::size_t>(i)] = 200 * i + i;
  EXPECT_EQ(run(doubled_from_some(), kept), "");
  for (std::size_t bad : {1, 31, 32, 33, 700, 2500, 5001, 5002}) {
    for (std::size_t before : {std::size_t{0}, bad / 2, bad - 1}) {
      if (kept[before] < 0) continue;
      Table entries = kept;
      entries[bad] = entries[before];
      std::string report = run(doubled_from_some(), entries);
      std::string words = "table 'order' breaks its contract (permutation -2, 500300): entry " +
                          std::to_string(bad) + " is " + std::to_string(entries[bad]);
      EXPECT_NE(report.find(words), std::string::npos) << words << "\n" << report;
    }
  }
}

TEST_F(GpuTables, TablesOfALaunchAreCheckedWhereTheyAreRead) {
  EXPECT_EQ(run(doubled_in_own_order(), {2, 0, 3, 1}), "");
  for (std::int32_t bad : {4, -7}) {
    std::string report = run(doubled_in_own_order(), {2, 0, bad, 1});
    std::string words = "table 'order' breaks its contract (range 0, 4): entry 2 is ";
    EXPECT_NE(report.find(words + std::to_string(bad)), std::string::npos) << report;
  }
}

}  // namespace
}  // namespace stretto::gpu_table_test
