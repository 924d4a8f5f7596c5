// Random tiles of random shapes through random operations, on a GPU or a simulated one and on CPU
// ranks, against a plain reference: a user who loses this gets wrong numbers from a program whose
// tiles have a shape that no operator of the catalog has. All values are small integers, so that
// every order of every sum gives the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "stretto/base/errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/lang/program_builder.h"
#include "stretto/testing/gpu_harness/gpu_case.h"
#include "stretto/testing/harness/run_case.h"

namespace stretto {
namespace {

// A value of the program and what it is.
struct Known {
  Value value;
  std::int64_t rows, cols;
  Values is;
  double at(std::int64_t r, std::int64_t c) const {
    return is[static_cast<std::size_t>((rows == 1 ? 0 : r) * cols + (cols == 1 ? 0 : c))];
  }
};

class RandomValues {
 public:
  explicit RandomValues(std::uint64_t seed) : random_(seed), p_("random_values", 1) {}

  OpCase make() {
    x_values_.resize(kRows * kCols);
    for (double& v : x_values_) v = between(-9, 9);
    DType dtype = chance(50) ? DType::kF32 : chance(50) ? DType::kBF16 : DType::kF16;
    TensorRef x = p_.input("x", dtype, {kRows, kCols});
    std::vector<TensorRef> outs;
    for (int i = 0; i < kOutputs; ++i) {
      outs.push_back(p_.output(fmt::format("out{}", i), DType::kF32, {kRows, kCols}));
    }
    std::vector<Values> stored(kOutputs, Values(kRows * kCols, std::nan("")));
    Resource sms = Resource::sms(1);
    bool pipelined = chance(40);  // factors go through slots
    if (pipelined) sms = sms.pipelined(between(2, 3));
    p_.role("any", sms, p_.range(1), [&](const Tile&) {
      if (pipelined || chance(20)) products_of_blocks(x);
      for (int i = between(1, 2); i >= 0; --i) load(x);
      for (int i = between(4, 12); i > 0; --i) step();
      for (int i = 0; i < kOutputs; ++i)
        store(outs[static_cast<std::size_t>(i)], stored[static_cast<std::size_t>(i)]);
    });
    OpCase c{.program = p_.finish()};
    c.config = text_;
    c.inputs = c.expected = no_values(c.program);
    c.inputs[0][index_of(c, "x")] = x_values_;
    for (int i = 0; i < kOutputs; ++i) {
      c.expected[0][index_of(c, fmt::format("out{}", i))] = stored[static_cast<std::size_t>(i)];
    }
    return c;
  }

 private:
  static constexpr std::int64_t kRows = 150, kCols = 140;
  static constexpr int kOutputs = 3;

  int between(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }
  bool chance(int percent) { return between(1, 100) <= percent; }
  std::int64_t size() {
    constexpr int kSizes[] = {1, 1, 2, 3, 8, 13, 16, 31, 32, 64, 80, 128};
    return kSizes[between(0, 11)];
  }
  static std::size_t index_of(const OpCase& c, const std::string& name) {
    return static_cast<std::size_t>(c.program.find_tensor(name));
  }
  const Known& any() {
    return known_[static_cast<std::size_t>(between(0, static_cast<int>(known_.size()) - 1))];
  }
  const Known* any(const std::function<bool(const Known&)>& fits) {
    std::vector<const Known*> those;
    for (const Known& k : known_) {
      if (fits(k)) those.push_back(&k);
    }
    return those.empty()
               ? nullptr
               : those[static_cast<std::size_t>(between(0, static_cast<int>(those.size()) - 1))];
  }

  // What is added stays between -99 and 99.
  void add(Value value, std::int64_t rows, std::int64_t cols,
           const std::function<double(std::int64_t, std::int64_t)>& at, const char* what) {
    Known k{.value = minimum(maximum(value, -99.0), 99.0), .rows = rows, .cols = cols, .is = {}};
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) k.is.push_back(std::clamp(at(r, c), -99.0, 99.0));
    }
    text_ += fmt::format("{} [{}, {}]; ", what, rows, cols);
    known_.push_back(std::move(k));
  }

  double x_at(std::int64_t r, std::int64_t c) const {
    return r < kRows && c < kCols ? x_values_[static_cast<std::size_t>(r * kCols + c)] : 0;
  }
  void load(const TensorRef& x) {
    std::int64_t rows = size(), cols = size(), row = between(0, kRows - 1),
                 col = between(0, kCols - 1);
    if (chance(50)) row = col = 0;
    add(
        cast(p_.load(x.tile({row, col}, rows, cols)), DType::kF32), rows, cols,
        [&](std::int64_t r, std::int64_t c) { return x_at(row + r, col + c); }, "load");
  }
  void store(const TensorRef& out, Values& stored) {
    Known k = any();
    std::int64_t row = between(0, 40), col = between(0, 40);
    p_.store(out.tile({row, col}, k.rows, k.cols), k.value);
    for (std::int64_t r = 0; r < k.rows && row + r < kRows; ++r) {
      for (std::int64_t c = 0; c < k.cols && col + c < kCols; ++c) {
        stored[static_cast<std::size_t>((row + r) * kCols + col + c)] = k.at(r, c);
      }
    }
  }

  void step() {
    switch (between(0, 7)) {
      case 0:
        return iota();
      case 1:
        return transpose();
      case 2:
      case 3:
        return reduce();
      case 4:
        return product();
      case 5:
        return choose();
      default:
        return binary();
    }
  }
  void iota() {
    std::int64_t n = size(), first = between(0, 9);
    if (chance(50)) {
      add(
          cast(p_.iota_rows(first, n), DType::kF32), n, 1,
          [&](std::int64_t r, std::int64_t) { return static_cast<double>(first + r); },
          "iota_rows");
    } else {
      add(
          cast(p_.iota_cols(first, n), DType::kF32), 1, n,
          [&](std::int64_t, std::int64_t c) { return static_cast<double>(first + c); },
          "iota_cols");
    }
  }
  void transpose() {
    Known k = any();
    add(
        k.value.T(), k.cols, k.rows, [&](std::int64_t r, std::int64_t c) { return k.at(c, r); },
        "T");
  }
  void reduce() {
    Known k = any();
    bool columns = chance(50);  // [r,c] -> [r,1]
    int what = between(0, columns ? 2 : 1);
    Value v = columns ? (what == 0   ? row_sum(k.value)
                         : what == 1 ? row_max(k.value)
                                     : cast(row_argmax(k.value), DType::kF32))
                      : (what == 0 ? col_sum(k.value) : col_max(k.value));
    auto of = [&](std::int64_t i) {
      double sum = 0, best = -1e9, where = 0;
      for (std::int64_t j = 0; j < (columns ? k.cols : k.rows); ++j) {
        double element = columns ? k.at(i, j) : k.at(j, i);
        sum += element;
        if (element > best) best = element, where = static_cast<double>(j);
      }
      return what == 0 ? sum : what == 1 ? best : where;
    };
    const char* kNames[] = {"sum", "max", "argmax"};
    add(
        v, columns ? k.rows : 1, columns ? 1 : k.cols,
        [&](std::int64_t r, std::int64_t c) { return of(columns ? r : c); }, kNames[what]);
  }
  // Sums of products of up to 128 pairs stay exact; factors are cut to -9 .. 9 first. Of 16 bits,
  // some shapes are the tensor core's.
  void product() {
    Known a = any();
    const Known* found = any([&](const Known& k) { return k.rows == a.cols; });
    Known b = found == nullptr ? a : *found;
    if (found == nullptr) {  // with its own transpose
      b = {.value = a.value.T(), .rows = a.cols, .cols = a.rows, .is = {}};
      for (std::int64_t r = 0; r < b.rows; ++r) {
        for (std::int64_t c = 0; c < b.cols; ++c) b.is.push_back(a.at(c, r));
      }
    }
    DType factor = chance(50) ? DType::kBF16 : DType::kF32;
    auto cut = [&](const Value& v) { return cast(minimum(maximum(v, -9.0), 9.0), factor); };
    bool sums = chance(30);
    std::int64_t cols = b.cols + (sums ? 8 : 0);
    Value acc = p_.zeros(DType::kF32, a.rows, cols), left = cut(a.value), right = cut(b.value);
    add(
        sums ? dot_and_row_sums(acc, left, right) : dot(acc, left, right), a.rows, cols,
        [&](std::int64_t r, std::int64_t c) {
          double sum = 0;
          for (std::int64_t k = 0; k < a.cols; ++k) {
            double factor = c < b.cols ? std::clamp(b.at(k, c), -9.0, 9.0) : 1;
            sum += std::clamp(a.at(r, k), -9.0, 9.0) * factor;
          }
          return sum;
        },
        sums ? "dot and row sums" : "dot");
  }
  // Rows of x by rows of x, block by block of their columns, of which the last ones may lie
  // outside.
  void products_of_blocks(const TensorRef& x) {
    constexpr int kBlocks[] = {16, 32, 64};
    std::int64_t rows = size(), cols = size(), block = kBlocks[between(0, 2)],
                 count = between(1, 4);
    std::int64_t row = between(0, 5) * 8, other = between(0, 5) * 8;
    Value acc = p_.zeros(DType::kF32, rows, cols);
    p_.loop(count, [&](const Index& i) {
      Value a = p_.load(x.tile({row, i * block}, rows, block));
      Value b = p_.load(x.tile({other, i * block}, cols, block));
      acc = dot(acc, a, b.T());
    });
    add(
        acc, rows, cols,
        [&](std::int64_t r, std::int64_t c) {
          double sum = 0;
          for (std::int64_t k = 0; k < count * block; ++k)
            sum += x_at(row + r, k) * x_at(other + c, k);
          return sum;
        },
        "products of blocks");
  }
  // One of the same shape, or a row, a column or a number that is spread.
  Known beside(const Known& a) {
    return *any([&](const Known& k) {
      return (k.rows == a.rows || k.rows == 1) && (k.cols == a.cols || k.cols == 1);
    });
  }
  void choose() {
    Known a = any(), b = beside(a), c = beside(a);
    add(
        where(a.value < b.value, c.value, a.value), a.rows, a.cols,
        [&](std::int64_t i, std::int64_t j) {
          return a.at(i, j) < b.at(i, j) ? c.at(i, j) : a.at(i, j);
        },
        "where");
  }
  void binary() {
    Known a = any(), b = beside(a);
    int what = between(0, 4);
    Value v = what == 0   ? a.value + b.value
              : what == 1 ? a.value - b.value
              : what == 2 ? a.value * b.value
              : what == 3 ? maximum(a.value, b.value)
                          : abs(a.value) - b.value;
    add(
        v, a.rows, a.cols,
        [&](std::int64_t r, std::int64_t c) {
          double x = a.at(r, c), y = b.at(r, c);
          return what == 0   ? x + y
                 : what == 1 ? x - y
                 : what == 2 ? x * y
                 : what == 3 ? std::max(x, y)
                             : std::abs(x) - y;
        },
        "binary");
  }

  std::mt19937_64 random_;
  ProgramBuilder p_;
  std::vector<Known> known_;
  Values x_values_;
  std::string text_ = "random_values: ";
};

int num_programs() { return std::getenv("STRETTO_SOAK") != nullptr ? 500 : 12; }

TEST(RandomValues, AreTheReferencesOnCpuRanks) {
  std::uint64_t seed = test_seed();
  for (int i = 0; i < num_programs(); ++i) {
    OpCase c = RandomValues(seed + static_cast<std::uint64_t>(i)).make();
    EXPECT_EQ(run_case(c, {}), "")
        << c.config << "\nSTRETTO_TEST_SEED=" << seed + static_cast<std::uint64_t>(i);
  }
}

TEST(RandomValues, AreTheReferencesOnGpus) {
  if (!cuda::has_driver() || cuda::num_devices() == 0) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = test_seed();
  GpuWorld world({.size = 1});
  int ran = 0;
  for (int i = 0; i < num_programs(); ++i) {
    OpCase c = RandomValues(seed + static_cast<std::uint64_t>(i)).make();
    SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed + static_cast<std::uint64_t>(i)));
    try {
      EXPECT_EQ(run_gpu_case(world, c, {.seed = seed}), "") << c.config;
      ++ran;
    } catch (const UserError& e) {  // more than a block holds
      RecordProperty("refused", e.what());
    } catch (const std::exception& e) {  // the GPU is of no use after that
      FAIL() << e.what() << "\n" << c.config;
    }
  }
  EXPECT_GT(ran, num_programs() / 2);
}

}  // namespace
}  // namespace stretto
