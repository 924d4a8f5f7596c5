// Random inputs and plain references of the collectives: rows are copied and added as the
// definition says, without tiles, signals or channels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "stretto/ops/collectives/collective_shapes.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/testing/cases/cases.h"

namespace stretto {
namespace {

// What every case of a program with inputs "in" and outputs "out" shares.
struct CaseBuilder {
  OpCase c;
  CollectiveDesc d;
  std::int64_t m = 0;           // run-time rows
  std::int64_t rows = 0;        // per rank, run-time
  std::int64_t bound_rows = 0;  // per rank, at the bound
  std::size_t in = 0, out = 0;
  float factor = 1;  // of premultiplied sums

  CaseBuilder(const CollectiveDesc& desc, const CollectiveConfig& config, Program program,
              const OpShape& shape, std::uint64_t seed)
      : d(desc) {
    c.program = std::move(program);
    // Every third seed runs below the bound, 0 included.
    bool any_rows = c.program.vars.size() > 1 && c.program.vars[1].kind == VarKind::kExtent;
    m = any_rows && seed % 3 == 2 ? static_cast<std::int64_t>(seed / 3) % (d.m + 1) : d.m;
    if (any_rows) m = shape.rows.value_or(m);
    rows = std::max<std::int64_t>(ceil_div(m, static_cast<std::int64_t>(d.world_size)), 1);
    bound_rows = ceil_div(d.m, static_cast<std::int64_t>(d.world_size));
    c.config = fmt::format("{} {} m={} {}", c.program.name, to_string(d), m, to_string(config));
    c.inputs = no_values(c.program);
    c.expected = no_values(c.program);
    c.comm_bytes = static_cast<double>(d.m * d.n) * static_cast<double>(size_bytes(d.dtype));
    in = static_cast<std::size_t>(c.program.find_tensor("in"));
    out = static_cast<std::size_t>(c.program.find_tensor("out"));
    for (int r = 0; r < d.world_size; ++r) {
      auto count =
          static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(in))));
      input(r) = random_values(count, d.dtype, seed * 1009 + static_cast<std::uint64_t>(r));
      // Products of many ranks stay of one magnitude.
      if (d.reduction == Reduction::kProduct) {
        for (double& v : input(r)) v = std::copysign(1 + std::round(std::fabs(v) * 4) / 8, v);
      }
      auto outputs =
          static_cast<std::size_t>(num_elements(bound_shape(c.program, static_cast<int>(out))));
      expected(r).assign(outputs, kUnchecked);
    }
    if (any_rows) c.extents = {m};
    if (d.reduction == Reduction::kPremulSum) {
      factor = static_cast<float>(random_values(1, DType::kF32, seed * 31 + 5)[0] - 1.25);
      c.extents.push_back(scalar_of_float(factor));
    }
  }

  Values& input(int rank) { return c.inputs[static_cast<std::size_t>(rank)][in]; }
  Values& expected(int rank) { return c.expected[static_cast<std::size_t>(rank)][out]; }
  std::size_t at(std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>(row * d.n + col);
  }

  // Over ranks of in[row, col], as the definition has it: exact order, fp32 partial sums are within
  // tolerance.
  double reduced(std::int64_t row, std::int64_t col) {
    double total = factor * input(0)[at(row, col)];
    for (int r = 1; r < d.world_size; ++r) {
      double part = factor * input(r)[at(row, col)];
      switch (d.reduction) {
        case Reduction::kMin:
          total = std::min(total, part);
          break;
        case Reduction::kMax:
          total = std::max(total, part);
          break;
        case Reduction::kProduct:
          total *= part;
          break;
        default:
          total += part;
      }
    }
    return d.reduction == Reduction::kAverage ? total / d.world_size : total;
  }
};

OpCase all_gather_case(const OpShape& shape, std::uint64_t seed) {
  CollectiveDesc d = collective_desc(shape);
  CollectiveConfig config = one_hop_config(d, shape.target);
  CaseBuilder b(d, config, all_gather(d, config), shape, seed);
  for (int r = 0; r < d.world_size; ++r) {
    for (std::int64_t row = 0; row < b.m; ++row) {
      for (std::int64_t col = 0; col < d.n; ++col) {
        b.expected(r)[b.at(row, col)] =
            b.input(static_cast<int>(row / b.rows))[b.at(row % b.rows, col)];
      }
    }
  }
  return std::move(b.c);
}

OpCase reduce_scatter_case(const OpShape& shape, std::uint64_t seed, Reduction reduction) {
  CollectiveDesc d = collective_desc(shape, reduction);
  CollectiveConfig config = one_hop_config(d, shape.target);
  CaseBuilder b(d, config, reduce_scatter(d, config), shape, seed);
  b.c.tolerance = sum_tolerance(d.dtype, d.world_size);
  std::int64_t out_rows = ceil_div(b.m, static_cast<std::int64_t>(d.world_size));
  for (int r = 0; r < d.world_size; ++r) {
    for (std::int64_t row = 0; row < out_rows; ++row) {
      for (std::int64_t col = 0; col < d.n; ++col) {
        std::int64_t global = r * b.rows + row;
        b.expected(r)[b.at(row, col)] = global < b.m ? b.reduced(global, col) : 0;
      }
    }
  }
  return std::move(b.c);
}

OpCase all_reduce_case(const OpShape& shape, std::uint64_t seed, AllReduceKind kind,
                       Reduction reduction) {
  CollectiveDesc d = collective_desc(shape, reduction);
  CollectiveConfig config = small_tiles_config(d, shape.target, kind);
  CaseBuilder b(d, config, all_reduce(d, config), shape, seed);
  b.c.tolerance = sum_tolerance(d.dtype, d.world_size);
  if (kind == AllReduceKind::kRing) b.c.tolerance *= d.world_size;  // it rounds at each hop
  for (int r = 0; r < d.world_size; ++r) {
    for (std::int64_t row = 0; row < b.m; ++row) {
      for (std::int64_t col = 0; col < d.n; ++col)
        b.expected(r)[b.at(row, col)] = b.reduced(row, col);
    }
  }
  return std::move(b.c);
}

OpCase all_to_all_case(const OpShape& shape, std::uint64_t seed) {
  CollectiveDesc d = collective_desc(shape);
  CollectiveConfig config = one_hop_config(d, shape.target);
  CaseBuilder b(d, config, all_to_all(d, config), shape, seed);
  auto counts = static_cast<std::size_t>(b.c.program.find_tensor("recv_counts"));
  Values draws =
      random_values(static_cast<std::size_t>(d.world_size * d.world_size), DType::kF32, seed + 77);
  std::int64_t block = d.m * d.n;
  for (int r = 0; r < d.world_size; ++r) {
    for (int s = 0; s < d.world_size; ++s) {
      double draw = (draws[static_cast<std::size_t>(r * d.world_size + s)] + 1) / 2;
      auto count = static_cast<std::int64_t>(std::floor(draw * static_cast<double>(d.m + 1)));
      b.c.inputs[static_cast<std::size_t>(r)][counts].push_back(static_cast<double>(count));
      for (std::int64_t i = 0; i < block; ++i) {
        b.expected(r)[static_cast<std::size_t>(s * block + i)] =
            i / d.n < count ? b.input(s)[static_cast<std::size_t>(r * block + i)] : 0;
      }
    }
  }
  return std::move(b.c);
}

// What is expected is what was sent; elements may be off by what int8 leaves out. Where both
// travel, `bound` is by the largest of a row that a rank sends.
class Int8Case {
 public:
  Int8Case(const OpShape& shape, std::uint64_t seed,
           Program (*program)(const CollectiveDesc&, const CollectiveConfig&))
      : d_(int8_desc(shape)),
        config_(int8_config(d_, shape.target, program == all_reduce)),
        b_(d_, config_, program(d_, config_), shape, seed) {
    b_.c.tolerance = sum_tolerance(d_.dtype, d_.world_size);
    b_.c.comm_bytes /= static_cast<double>(size_bytes(d_.dtype));  // of scales not to speak of
    std::vector<Values>& slack = b_.c.scales["out"];
    for (int r = 0; r < d_.world_size; ++r) slack.emplace_back(b_.expected(r).size(), 1);
  }

  const CollectiveDesc& d() const { return d_; }
  CaseBuilder& b() { return b_; }
  // Of a row of a rank's input.
  double bound(int rank, std::int64_t row) {
    if (d_.world_size == 1) return 0;
    double largest = 0;
    for (std::int64_t col = 0; col < d_.n; ++col) {
      largest = std::max(largest, std::fabs(b_.input(rank)[b_.at(row, col)]));
    }
    return largest / 254;
  }
  void expect(int rank, std::size_t element, double value, double slack) {
    b_.expected(rank)[element] = value;
    // Sums of fp32 are of numbers up to about one.
    b_.c.scales["out"][static_cast<std::size_t>(rank)][element] += slack / b_.c.tolerance;
  }

 private:
  CollectiveDesc d_;
  CollectiveConfig config_;
  CaseBuilder b_;
};

OpCase all_gather_int8_case(const OpShape& shape, std::uint64_t seed) {
  Int8Case c(shape, seed, all_gather);
  CaseBuilder& b = c.b();
  for (int r = 0; r < c.d().world_size; ++r) {
    for (std::int64_t row = 0; row < b.m; ++row) {
      int owner = static_cast<int>(row / b.rows);
      double slack = c.bound(owner, row % b.rows);
      for (std::int64_t col = 0; col < c.d().n; ++col) {
        c.expect(r, b.at(row, col), b.input(owner)[b.at(row % b.rows, col)], slack);
      }
    }
  }
  return std::move(b.c);
}

// Of a sum whose parts have travelled, but for the own one.
double slack_of_sum(Int8Case& c, int rank, std::int64_t row) {
  double slack = 0;
  for (int r = 0; r < c.d().world_size; ++r) {
    if (r != rank) slack += c.bound(r, row);
  }
  return slack;
}

OpCase reduce_scatter_int8_case(const OpShape& shape, std::uint64_t seed) {
  Int8Case c(shape, seed, reduce_scatter);
  CaseBuilder& b = c.b();
  std::int64_t out_rows = ceil_div(b.m, static_cast<std::int64_t>(c.d().world_size));
  for (int r = 0; r < c.d().world_size; ++r) {
    for (std::int64_t row = 0; row < out_rows; ++row) {
      std::int64_t global = r * b.rows + row;
      double slack = global < b.m ? slack_of_sum(c, r, global) : 0;
      for (std::int64_t col = 0; col < c.d().n; ++col) {
        c.expect(r, b.at(row, col), global < b.m ? b.reduced(global, col) : 0, slack);
      }
    }
  }
  return std::move(b.c);
}

OpCase all_reduce_int8_case(const OpShape& shape, std::uint64_t seed) {
  Int8Case c(shape, seed, all_reduce);
  CaseBuilder& b = c.b();
  for (std::int64_t row = 0; row < b.m; ++row) {
    double slack = slack_of_sum(c, static_cast<int>(row / b.rows), row), largest = 0;
    for (std::int64_t col = 0; col < c.d().n; ++col) {
      largest = std::max(largest, std::fabs(b.reduced(row, col)) + slack);
    }
    if (c.d().world_size > 1) slack += largest / 254;
    for (int r = 0; r < c.d().world_size; ++r) {
      for (std::int64_t col = 0; col < c.d().n; ++col) {
        c.expect(r, b.at(row, col), b.reduced(row, col), slack);
      }
    }
  }
  return std::move(b.c);
}

// The own block is exact.
OpCase all_to_all_int8_case(const OpShape& shape, std::uint64_t seed) {
  Int8Case c(shape, seed, all_to_all);
  CaseBuilder& b = c.b();
  OpCase plain = all_to_all_case(shape, seed);  // of the same inputs
  b.c.inputs = plain.inputs;
  const std::int64_t m = c.d().m, n = c.d().n;
  for (int r = 0; r < c.d().world_size; ++r) {
    for (int s = 0; s < c.d().world_size; ++s) {
      for (std::int64_t row = 0; row < m; ++row) {
        double slack = s == r ? 0 : c.bound(s, r * m + row);
        for (std::int64_t col = 0; col < n; ++col) {
          auto at = static_cast<std::size_t>((s * m + row) * n + col);
          c.expect(r, at, plain.expected[static_cast<std::size_t>(r)][b.out][at], slack);
        }
      }
    }
  }
  return std::move(b.c);
}

OpCase broadcast_case(const OpShape& shape, std::uint64_t seed) {
  CollectiveDesc d = collective_desc(shape);
  CollectiveConfig config = fetching_config(d, shape.target);
  int root = d.world_size - 1;
  CaseBuilder b(d, config, broadcast(d, config, root), shape, seed);
  for (int r = 0; r < d.world_size; ++r) {
    for (std::int64_t i = 0; i < b.m * d.n; ++i) {
      b.expected(r)[static_cast<std::size_t>(i)] = b.input(root)[static_cast<std::size_t>(i)];
    }
  }
  return std::move(b.c);
}

// What only the root gets; the others have no memory for it.
using ElementOf = std::function<double(CaseBuilder&, std::int64_t row, std::int64_t col)>;
OpCase at_root_case(RootedProgram program, const OpShape& shape, std::uint64_t seed,
                    const ElementOf& element) {
  CollectiveDesc d = collective_desc(shape);
  CaseBuilder b(d, fetching_config(d, shape.target), with_middle_root(program, shape), shape, seed);
  for (int r = 0; r < d.world_size; ++r) {
    if (r != middle_rank(shape)) b.expected(r).clear();
  }
  for (std::int64_t row = 0; row < b.m; ++row) {
    for (std::int64_t col = 0; col < d.n; ++col) {
      b.expected(middle_rank(shape))[b.at(row, col)] = element(b, row, col);
    }
  }
  return std::move(b.c);
}

OpCase reduce_case(const OpShape& shape, std::uint64_t seed) {
  OpCase c = at_root_case(
      reduce_to, shape, seed,
      [](CaseBuilder& b, std::int64_t row, std::int64_t col) { return b.reduced(row, col); });
  c.tolerance = sum_tolerance(shape.dtype, shape.world_size);
  return c;
}

OpCase gather_case(const OpShape& shape, std::uint64_t seed) {
  return at_root_case(gather_to, shape, seed,
                      [](CaseBuilder& b, std::int64_t row, std::int64_t col) {
                        return b.input(static_cast<int>(row / b.rows))[b.at(row % b.rows, col)];
                      });
}

OpCase send_case(const OpShape& shape, std::uint64_t seed) {
  return at_root_case(send_from_last, shape, seed,
                      [](CaseBuilder& b, std::int64_t row, std::int64_t col) {
                        return b.input(b.d.world_size - 1)[b.at(row, col)];
                      });
}

OpCase scatter_case(const OpShape& shape, std::uint64_t seed) {
  CollectiveDesc d = collective_desc(shape);
  CaseBuilder b(d, fetching_config(d, shape.target), with_middle_root(scatter_from, shape), shape,
                seed);
  std::int64_t out_rows = ceil_div(b.m, static_cast<std::int64_t>(d.world_size));
  for (int r = 0; r < d.world_size; ++r) {
    for (std::int64_t row = 0; row < out_rows; ++row) {
      for (std::int64_t col = 0; col < d.n; ++col) {
        std::int64_t global = r * b.rows + row;
        b.expected(r)[b.at(row, col)] =
            global < b.m ? b.input(middle_rank(shape))[b.at(global, col)] : 0;
      }
    }
  }
  return std::move(b.c);
}

}  // namespace

std::vector<OperatorCase> collective_cases() {
  std::vector<OperatorCase> cases = {{"all_gather", all_gather_case},
                                     {"all_to_all", all_to_all_case},
                                     {"broadcast", broadcast_case},
                                     {"reduce", reduce_case},
                                     {"gather", gather_case},
                                     {"send", send_case},
                                     {"scatter", scatter_case},
                                     {"all_gather_int8", all_gather_int8_case},
                                     {"reduce_scatter_int8", reduce_scatter_int8_case},
                                     {"all_reduce_int8", all_reduce_int8_case},
                                     {"all_to_all_int8", all_to_all_int8_case}};
  for (Reduction reduction : {Reduction::kSum, Reduction::kProduct, Reduction::kPremulSum}) {
    cases.push_back(
        {reduce_scatter_info(reduction).name, [reduction](const OpShape& s, std::uint64_t seed) {
           return reduce_scatter_case(s, seed, reduction);
         }});
  }
  auto add = [&](AllReduceKind kind, Reduction reduction) {
    cases.push_back({all_reduce_info(kind, reduction).name,
                     [kind, reduction](const OpShape& s, std::uint64_t seed) {
                       return all_reduce_case(s, seed, kind, reduction);
                     }});
  };
  for (AllReduceKind kind : {AllReduceKind::kOneShot, AllReduceKind::kTwoShot,
                             AllReduceKind::kPacket, AllReduceKind::kRing}) {
    add(kind, Reduction::kSum);
  }
  add(AllReduceKind::kTwoShot, Reduction::kMax);
  add(AllReduceKind::kOneShot, Reduction::kPremulSum);
  return cases;
}

}  // namespace stretto
