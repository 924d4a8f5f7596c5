// Matrix products of the simulated tensor cores (PTX ISA, "Asynchronous warpgroup level matrix
// multiply"): a group is computed when it is committed or when it is waited for.
#include <fmt/format.h>

#include <cstring>

#include "stretto/base/dtype.h"
#include "stretto/simulator/gpu_simulator.h"

namespace stretto::simulator {
namespace {

constexpr int kUnitBytes = 16;

int element_bytes(Factor factor) { return factor == Factor::kE4M3 ? 1 : 2; }

// `count` factors that follow each other.
template <class Bits, class F>
void widen(const unsigned char* from, int count, float* to, F value) {
  for (int i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * static_cast<int>(sizeof(Bits)), sizeof(Bits));
    to[i] = value(bits);
  }
}
void widen(Factor factor, const unsigned char* from, int count, float* to) {
  switch (factor) {
    case Factor::kE4M3:
      return widen<std::uint8_t>(from, count, to, f8e4m3_to_f32);
    case Factor::kF16:
      return widen<std::uint16_t>(from, count, to, f16_to_f32);
    case Factor::kBF16:
      return widen<std::uint16_t>(from, count, to, bf16_to_f32);
  }
}

// An operand in shared memory, by its descriptor. Rows run over M or N.
class Operand {
 public:
  Operand(const Block& block, std::uint64_t descriptor, bool transposed, Factor factor)
      : block_(block), transposed_(transposed), factor_(factor) {
    auto field = [&](int at) { return static_cast<std::uint32_t>(descriptor >> at & 0x3fff) << 4; };
    start_ = field(0);
    leading_ = field(16);
    stride_ = field(32);
    std::uint64_t mode = descriptor >> 62;
    span_ = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 0;
    if (span_ == 0 || (transposed && factor == Factor::kE4M3)) {
      throw Violation(fmt::format("{}: a matrix descriptor {:x}", block.where(), descriptor));
    }
  }
  // put(row, k, value) for rows [first, first + rows), k of them.
  template <class F>
  void each(int first, int rows, int k, F put) const {
    int bytes = element_bytes(factor_), unit = kUnitBytes / bytes;
    float values[16];
    if (transposed_) {  // rows lie beside each other, `span_` bytes of them, then `leading_` on
      int per_atom = static_cast<int>(span_) / bytes;
      for (int i = 0; i < k; ++i) {
        for (int r = first / unit * unit; r < first + rows; r += unit) {
          std::uint32_t address = start_ + static_cast<std::uint32_t>(r % per_atom * bytes) +
                                  static_cast<std::uint32_t>(r / per_atom) * leading_ +
                                  static_cast<std::uint32_t>(i % 8) * span_ +
                                  static_cast<std::uint32_t>(i / 8) * stride_;
          widen(factor_, at(address), unit, values);
          for (int u = 0; u < unit; ++u) {
            if (r + u >= first && r + u < first + rows) put(r + u, i, values[u]);
          }
        }
      }
      return;
    }
    for (int r = first; r < first + rows; ++r) {
      for (int i = 0; i < k; i += unit) {
        widen(
            factor_,
            at(start_ + static_cast<std::uint32_t>(r % 8) * span_ +
               static_cast<std::uint32_t>(r / 8) * stride_ + static_cast<std::uint32_t>(i * bytes)),
            unit, values);
        for (int u = 0; u < unit; ++u) put(r, i + u, values[u]);
      }
    }
  }

 private:
  const unsigned char* at(std::uint32_t address) const {
    return block_.memory(swizzled(address, span_), kUnitBytes);
  }

  const Block& block_;
  bool transposed_;
  Factor factor_;
  std::uint32_t start_, leading_, stride_, span_;
};

bool alike(const Product& a, const Product& b) {
  return a.factor == b.factor && a.n == b.n && a.k == b.k && a.keep == b.keep && a.a == b.a &&
         a.b == b.b && a.a_transposed == b.a_transposed && a.b_transposed == b.b_transposed &&
         (a.a_words == nullptr) == (b.a_words == nullptr);
}

// Of a warp, the 16 rows that it has of 64. Lane i has rows i / 4 and 8 below, two neighbouring
// columns of every eight; of A in registers the same rows, and columns in the same way.
void compute(Thread* const lanes[32], std::size_t group, std::size_t index) {
  auto of_lane = [&](int lane) -> PendingProduct& { return lanes[lane]->products[group][index]; };
  const Product& p = of_lane(0).product;
  const Block& block = *lanes[0]->at;
  for (int lane = 1; lane < 32; ++lane) {
    if (!alike(p, of_lane(lane).product)) {
      throw Violation(fmt::format("{}: lanes of a warp ask for different products", block.where()));
    }
  }
  float a[16][32];
  static float b[32][256];
  if (p.a_words == nullptr) {
    int first = static_cast<int>(lanes[0]->index / 32 % 4) * 16;
    Operand(block, p.a, p.a_transposed, p.factor)
        .each(first, 16, p.k, [&](int row, int k, float v) { a[row - first][k] = v; });
  } else {
    for (int lane = 0; lane < 32; ++lane) {
      for (int word = 0; word < 4; ++word) {
        widen(p.factor, reinterpret_cast<const unsigned char*>(&of_lane(lane).a_words[word]), 2,
              &a[lane / 4 + word % 2 * 8][lane % 4 * 2 + word / 2 * 8]);
      }
    }
  }
  Operand(block, p.b, p.b_transposed, p.factor).each(0, p.n, p.k, [&](int row, int k, float v) {
    b[k][row] = v;
  });
  for (int row = 0; row < 16; ++row) {
    float sum[256];
    auto at = [&](int n) -> float& {
      int lane = row % 8 * 4 + n % 8 / 2;
      return *of_lane(lane).sum[static_cast<std::size_t>(n / 8 * 4 + row / 8 * 2 + n % 2)];
    };
    for (int n = 0; n < p.n; ++n) sum[n] = p.keep ? at(n) : 0.f;
    for (int k = 0; k < p.k; ++k) {
      for (int n = 0; n < p.n; ++n) sum[n] += a[row][k] * b[k][n];
    }
    for (int n = 0; n < p.n; ++n) at(n) = sum[n];
  }
}

}  // namespace

void matrix_product(const Product& product) {
  Thread& own = machine->self();
  PendingProduct pending{.product = product, .sum = {}, .a_words = {}};
  pending.sum.assign(product.sum, product.sum + product.n / 2);
  if (product.a_words != nullptr) std::memcpy(pending.a_words, product.a_words, 16);
  if (own.products.empty()) own.products.emplace_back();
  own.products.back().push_back(std::move(pending));
}

void matrix_commit() {
  Thread& own = machine->self();
  if (own.products.empty()) own.products.emplace_back();
  own.products.emplace_back();
}

// The wait is of the warp; the last lane that comes computes what is due, and sometimes more.
void matrix_wait(std::uint32_t pending) {
  struct Mine {
    Thread* thread;
    std::uint32_t pending;
  } mine{&machine->self(), pending};
  warp_together(WarpOp::kProducts, &mine, [](void* const lanes[32]) {
    Thread* threads[32];
    for (int i = 0; i < 32; ++i) {
      if (lanes[i] == nullptr) throw Violation("products of a warp of which a lane has ended");
      threads[i] = static_cast<Mine*>(lanes[i])->thread;
    }
    // All groups but the last, which is open.
    std::size_t committed = threads[0]->products.size();
    if (committed > 0) --committed;
    std::size_t keep = static_cast<Mine*>(lanes[0])->pending;
    std::size_t due = committed > keep ? committed - keep : 0;
    if (machine->draw(2) == 0) due = committed;
    for (std::size_t g = 0; g < due; ++g) {
      for (std::size_t i = 0; i < threads[0]->products[g].size(); ++i) compute(threads, g, i);
    }
    for (Thread* t : threads) {
      t->products.erase(t->products.begin(),
                        t->products.begin() + static_cast<std::ptrdiff_t>(due));
    }
  });
}

}  // namespace stretto::simulator
