// Rows of a state or a buffer that entries of tables choose, in all sorts of ways. What is right
// for every table is never rejected; what is rejected is wrong for the tables that the report
// names. If this fails, a user is told of a race that no launch has, or looks for it at tables that
// do not have it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>

#include "stretto/base/test_seed.h"
#include "stretto/executor/controlled.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/proof/mutation/mutate.h"
#include "stretto/proof/prove.h"
#include "stretto/proof/sample.h"

namespace stretto {
namespace {

using Entries = std::vector<std::int64_t>;
using Tables = std::map<std::string, std::vector<Entries>>;  // by name, of each rank

enum class RowOf { kEntry, kShifted, kMirrored, kTwice, kTwiceAndOne, kHalf, kUpperHalf, kSum };
constexpr int kNumShapes = 8;

// Of n rows, from an entry and another one.
template <typename T>
T row_of(RowOf shape, const T& e, const T& other, int n, int shift) {
  switch (shape) {
    case RowOf::kEntry:
      return e;
    case RowOf::kShifted:
      return (e + shift) % n;
    case RowOf::kMirrored:
      return n - 1 - e;
    case RowOf::kTwice:
      return e * 2;
    case RowOf::kTwiceAndOne:
      return e * 2 + 1;
    case RowOf::kHalf:
      return e / 2;
    case RowOf::kUpperHalf:
      return e / 2 + n / 2;
    case RowOf::kSum:
      return e + other;
  }
  return e;
}

// A store at a row.
struct Store {
  RowOf shape = RowOf::kEntry;
  int shift = 1;
  std::string table = "t";
  int entry = 0, other = 0;  // `other` of table "u"
  friend bool operator==(const Store&, const Store&) = default;
};

// Two roles store, or one stores and the other loads, in one launch of one rank, or on the next
// rank's memory and on the own.
struct TwoStores {
  int n = 8, world = 1;
  bool permutation = false, buffer = false, loads = false, ordered = false, sized = false;
  Store first, second;

  int num_entries() const { return permutation ? n : 2; }

  Program program() const {
    ProgramBuilder p("two_stores", world);
    Contract values{permutation ? ContractKind::kPermutation : ContractKind::kRange, 0, n};
    std::map<std::string, TensorRef> tables;
    for (const char* name : {"t", "u"}) tables[name] = p.table(name, {num_entries()}, values);
    auto in = p.input("in", DType::kF32, {1, 4});
    bool remote = world > 1;
    auto rows = buffer ? p.buffer("rows", DType::kF32, {2 * n, 4}, {.space = Space::kSymmetric})
                       : p.state("rows", DType::kF32, {2 * n, 4},
                                 remote ? Space::kSymmetric : Space::kLocal);
    auto ready = p.signal("ready", 1), stored = p.signal("stored", 1);
    Index next = (p.rank() + 1) % world, before = (p.rank() + world - 1) % world;
    auto row = [&](const Store& s) {
      return p.let("row", row_of<Index>(s.shape, p.read(tables[s.table], {s.entry}),
                                        p.read(tables["u"], {s.other}), n, s.shift));
    };
    if (remote) p.on_start([&] { p.notify(ready[0], before); });
    p.role("first", Resource::sms(1), p.range(1), [&](const Tile&) {
      if (remote) p.wait(ready[0], 1);
      auto to = rows.tile({row(first), 0}, 1, 4);
      p.store(remote ? rows.on(next).tile({row(first), 0}, 1, 4) : to,
              p.load(in.tile({0, 0}, 1, 4)));
      p.notify(stored[0], next);
    });
    auto y = p.output("y", DType::kF32, {1, 4});
    p.role("second", Resource::sms(1), p.range(1), [&](const Tile&) {
      if (ordered) p.wait(stored[0], 1);
      auto there = rows.tile({row(second), 0}, 1, 4);
      if (!loads) p.store(there, p.load(in.tile({0, 0}, 1, 4)));
      p.store(y.tile({0, 0}, 1, 4), p.load(loads ? there : in.tile({0, 0}, 1, 4)));
    });
    if (sized) {
      Index m = p.extent("m", 5);
      auto x = p.input("x", DType::kF32, {m, 4});
      auto z = p.output("z", DType::kF32, {m, 4});
      p.role("copy", Resource::sms(1), p.range(1), [&](const Tile&) {
        p.store(z.tile({0, 0}, 5, 4), p.load(x.tile({0, 0}, 5, 4)));
      });
    }
    p.on_end([&] { p.wait(stored[0], 1); });
    return run_pipeline(p.finish());
  }

  // Whether the two touch the same row of some rank's memory, unordered.
  bool fails(const Tables& tables) const {
    for (int rank = 0; rank < world && !ordered; ++rank) {
      auto row = [&](const Store& s, int of) {
        auto entry = [&](const std::string& table, int i) {
          return tables.at(table)[static_cast<std::size_t>(of)][static_cast<std::size_t>(i)];
        };
        return row_of<std::int64_t>(s.shape, entry(s.table, s.entry), entry("u", s.other), n,
                                    s.shift);
      };
      if (row(first, rank) == row(second, (rank + 1) % world)) return true;
    }
    return false;
  }
};

// Tables by lot that keep the contract.
Tables some_tables(const TwoStores& of, std::mt19937_64& random) {
  Tables tables;
  for (const char* name : {"t", "u"}) {
    for (int rank = 0; rank < of.world; ++rank) {
      Entries entries(static_cast<std::size_t>(of.num_entries()));
      std::iota(entries.begin(), entries.end(), 0);
      std::shuffle(entries.begin(), entries.end(), random);
      for (std::int64_t& e : entries) {
        if (!of.permutation) e = std::uniform_int_distribution<std::int64_t>(0, of.n - 1)(random);
      }
      tables[name].push_back(std::move(entries));
    }
  }
  return tables;
}

// Empty, or the race of a run of two launches with these tables.
std::string run_with(const Program& program, const Tables& tables, std::uint64_t seed) {
  ControlledOptions options{.policy = SchedulePolicy::kRandom, .seed = seed, .compute = false};
  options.before_launch = [&](int rank, int, ControlledMemory& memory) {
    for (const auto& [name, of_ranks] : tables) {
      auto* data = reinterpret_cast<std::int32_t*>(memory.data(rank, program.find_tensor(name)));
      std::ranges::copy(of_ranks[static_cast<std::size_t>(rank)], data);
    }
  };
  auto shared = std::make_shared<const Program>(program);
  return run_controlled(shared, count_quotas(program, extent_bounds(program)), options).report;
}

// "[3, 4]" as its numbers.
Entries entries_at(const std::string& text, std::size_t open) {
  Entries entries;
  std::istringstream list(text.substr(open + 1, text.find(']', open) - open - 1));
  for (std::string entry; std::getline(list, entry, ',');) entries.push_back(std::stoll(entry));
  return entries;
}

// Those that the report names; absent where it names none.
std::optional<Tables> tables_named(const std::string& report, int world) {
  Tables tables;
  for (const char* name : {"t", "u"}) {
    std::size_t open = report.find(fmt::format("'{}' = [", name));
    if (open == std::string::npos) return {};
    for (int rank = 0; rank < world; ++rank) {
      open = report.find('[', open);
      tables[name].push_back(entries_at(report, open));
      std::string own = fmt::format("] on rank {}, ", rank);
      std::size_t close = report.find(']', open);
      if (report.compare(close, own.size(), own) == 0) open = close;
    }
  }
  return tables;
}

class TableRows : public testing::Test {
 protected:
  int between(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random_); }
  bool chance(int percent) { return between(0, 99) < percent; }

  Store some_store(const TwoStores& of) {
    Store s;
    s.shape = static_cast<RowOf>(between(0, kNumShapes - 1));
    s.shift = between(1, of.n - 1);
    s.table = chance(70) ? "t" : "u";
    s.entry = between(0, of.num_entries() - 1);
    s.other = between(0, of.num_entries() - 1);
    return s;
  }
  TwoStores some_stores() {
    TwoStores of{.n = 2 * between(2, 6), .world = chance(60) ? 1 : 2};
    of.permutation = chance(40);
    of.buffer = chance(50);
    of.loads = !of.buffer && chance(40);
    of.ordered = chance(15);
    of.sized = chance(40);
    of.first = some_store(of);
    of.second = chance(60) ? beside(of) : some_store(of);
    return of;
  }
  // A store at another row than the first, mostly whatever the tables: of the same entry or of any.
  Store beside(TwoStores& of) {
    using enum RowOf;
    constexpr std::array kPairs = {std::pair(kEntry, kShifted), std::pair(kEntry, kMirrored),
                                   std::pair(kTwice, kTwiceAndOne), std::pair(kHalf, kUpperHalf)};
    auto [one, other] = kPairs[static_cast<std::size_t>(between(of.world > 1 ? 2 : 0, 3))];
    of.first.shape = one;
    Store second = one == kEntry ? of.first : some_store(of);
    second.shape = other;
    if (chance(50)) std::swap(of.first, second);
    return second;
  }
  // The tables, of very many, at which it fails; a run must fail there, and at no other.
  std::vector<Tables> failing_tables(const TwoStores& of, const Program& program) {
    std::vector<Tables> failing;
    for (int i = 0; i < 1'000; ++i) {
      Tables tables = some_tables(of, random_);
      if (of.fails(tables)) failing.push_back(tables);
      if (i >= 12) continue;
      bool raced = false;
      for (int run = 0; run < 8 && !raced; ++run)
        raced = !run_with(program, tables, random_()).empty();
      EXPECT_EQ(raced, of.fails(tables));
    }
    return failing;
  }

  void expect_named(const TwoStores& of, const ProofResult& proof) {
    std::optional<Tables> named = tables_named(proof.report, of.world);
    ASSERT_TRUE(named) << proof.report;
    EXPECT_TRUE(of.fails(*named)) << proof.report;
    EXPECT_EQ(proof.report.find("m = ") != std::string::npos, of.sized) << proof.report;
    EXPECT_NE(proof.report.find("launch 0"), std::string::npos) << proof.report;
  }

  std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
};

// Each drawn with a twin that is wrong.
TEST_F(TableRows, AreRejectedForTablesThatFailAlone) {
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed_));
  const int programs = std::getenv("STRETTO_SOAK") != nullptr ? 2'000 : 100;
  int right = 0, proved = 0, wrong = 0, rejected = 0;
  for (int i = 0; i < programs; ++i) {
    TwoStores of = some_stores();
    for (bool twin : {false, true}) {
      if (twin) {  // always the same row
        of.second = of.first;
        of.ordered = false;
        if (of.world > 1) of.first.shape = of.second.shape = RowOf::kHalf;
      }
      Program program = of.program();
      SCOPED_TRACE(print(program));
      ProofResult proof = prove(program);
      bool fails = !failing_tables(of, program).empty();
      EXPECT_TRUE(fails || !twin);
      if (proof.rejected()) expect_named(of, proof);
      EXPECT_TRUE(fails || !proof.rejected()) << proof.report;
      EXPECT_FALSE(fails && proof.proved()) << proof.report;
      ++(fails ? wrong : right);
      proved += proof.proved() ? 1 : 0;
      rejected += proof.rejected() ? 1 : 0;
    }
  }
  fmt::print(
      "{} right, {} of them proved, none rejected; {} wrong, {} of them rejected (seed {})\n",
      right, proved, wrong, rejected, seed_);
  EXPECT_GT(right, programs / 2);
  EXPECT_GE(rejected, wrong * 95 / 100);
}

// Writers of a large cache: rows that meet at few of very many tables.
TEST_F(TableRows, OfManyRowsMeetAtTablesThatAreFound) {
  TwoStores of{.n = 4096};
  of.second.entry = 1;
  for (RowOf shape : {RowOf::kEntry, RowOf::kShifted, RowOf::kMirrored}) {
    of.second.shape = shape;
    ProofResult proof = prove(of.program());
    EXPECT_TRUE(proof.rejected()) << proof.report;
    if (proof.rejected()) expect_named(of, proof);
  }
  for (RowOf shape : {RowOf::kShifted, RowOf::kMirrored}) {
    of.second = {.shape = shape, .entry = 0};
    ProofResult proof = prove(of.program());
    EXPECT_EQ(proof.verdict, Verdict::kNotComplete) << proof.report;
  }
}

// Without the fence between the rows of two sources nothing is wrong, whatever their sizes: runs do
// not overlap. The proof does not see it, and finds no table, so it is no race to report.
TEST_F(TableRows, OfRunsThatDoNotOverlapAreNoRaceForAnyTable) {
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed_));
  for (const char* name : {"all_to_all_v", "all_gather_v"}) {
    for (int world : {2, 3}) {
      const OperatorInfo& op = *find_operator(name);
      std::vector<Mutant> mutants = mutants_of(run_pipeline(op.program(op.shapes(world)[1])));
      std::erase_if(mutants, [](const Mutant& m) { return m.kind != "drop fence"; });
      const Program& program = mutants.back().program;
      EXPECT_EQ(prove(program).verdict, Verdict::kNotComplete) << name;
      for (int i = 0; i < 100; ++i) {
        auto tables = narrow_tables(program, extent_bounds(program), random_() % 1'000'000);
        ProofResult proof = prove(program, {.bounds_only = true, .tables = tables.get()});
        EXPECT_FALSE(proof.rejected()) << tables->name() << "\n" << proof.report;
      }
    }
  }
}

}  // namespace
}  // namespace stretto
