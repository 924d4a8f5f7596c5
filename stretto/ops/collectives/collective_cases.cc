// Random inputs and plain references of the collectives: rows are copied and added as the
// definition says, without tiles, signals or channels.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "stretto/ops/collectives/collectives.h"

namespace stretto {
namespace {

constexpr double kUnchecked = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kLineColumns = 256;  // 16-bit packets of so many go in lines on GPUs

CollectiveDesc desc_of(const OpShape& shape, Reduction reduction = Reduction::kSum) {
  return {.dtype = shape.dtype,
          .m = shape.m > 0 ? shape.m : 64,
          .n = shape.n > 0 ? shape.n : 96,
          .world_size = shape.world_size,
          .reduction = reduction};
}

bool is_large(const CollectiveDesc& d) { return d.m * d.n >= 100'000; }

// Small tiles for small shapes, so that tests have many of them.
CollectiveConfig config_of(const CollectiveDesc& d, Target target) {
  CollectiveConfig c = default_two_shot_config(d, target);
  if (is_large(d)) return c;
  constexpr std::int64_t kLeastInRings = 1500;  // every way by some of them
  c.tile_rows = std::max<std::int64_t>(1, std::min<std::int64_t>(3, c.tile_rows));
  c.tile_cols = std::min<std::int64_t>(16, c.tile_cols);
  c.piece_rows = std::min(c.piece_rows, c.tile_rows);
  c.push = d.m * d.n < 1000 || d.m * d.n >= kLeastInRings;
  if (d.m * d.n >= kLeastInRings) c.ring_slots = 2;
  c.packets = d.m * d.n < 100;
  if (d.n >= kLineColumns) {
    c.tile_cols = kLineColumns;
    c.push = c.packets = true;
    c.ring_slots = 0;
  }
  return c;
}

// Where nobody pushes.
CollectiveConfig fetching_config_of(const CollectiveDesc& d, Target target) {
  CollectiveConfig c = config_of(d, target);
  c.push = c.packets = false;
  c.ring_slots = 0;
  return c;
}

// Of gather, scatter and all-to-all: in rings some workers only receive.
CollectiveConfig one_hop_config_of(const CollectiveDesc& d, Target target) {
  if (is_large(d)) return default_config(d, target);
  CollectiveConfig c = config_of(d, target);
  if (c.ring_slots > 0) c.num_receivers = 2;
  return c;
}

CollectiveConfig config_of(const CollectiveDesc& d, Target target, AllReduceKind kind) {
  bool pushes = kind == AllReduceKind::kTwoShot;
  CollectiveConfig c = pushes ? config_of(d, target) : fetching_config_of(d, target);
  if (kind == AllReduceKind::kRing) c.num_workers = 1;
  c.all_reduce = kind;
  return c;
}

// What every case of a program with inputs "in" and outputs "out" shares.
struct CaseBuilder {
  OpCase c;
  CollectiveDesc d;
  std::int64_t m = 0;           // run-time rows
  std::int64_t rows = 0;        // per rank, run-time
  std::int64_t bound_rows = 0;  // per rank, at the bound
  std::size_t in = 0, out = 0;

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
  }

  Values& input(int rank) { return c.inputs[static_cast<std::size_t>(rank)][in]; }
  Values& expected(int rank) { return c.expected[static_cast<std::size_t>(rank)][out]; }
  std::size_t at(std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>(row * d.n + col);
  }

  // Over ranks of in[row, col], as the definition has it: exact order, fp32 partial sums are within
  // tolerance.
  double reduced(std::int64_t row, std::int64_t col) {
    double total = input(0)[at(row, col)];
    for (int r = 1; r < d.world_size; ++r) {
      double part = input(r)[at(row, col)];
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

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 16, .n = 32, .dtype = DType::kF32},
          {.world_size = world_size, .m = 37, .n = 29, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 5, .n = 7, .dtype = DType::kF16},
          {.world_size = world_size, .m = 50, .n = 33, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 9, .n = 2 * kLineColumns, .dtype = DType::kBF16}};
}

// Activations of 4096 tokens; 32 MB.
OpShape large() { return {.m = 4096, .n = 4096, .dtype = DType::kBF16}; }

OpCase all_gather_case(const OpShape& shape, std::uint64_t seed) {
  CollectiveDesc d = desc_of(shape);
  CollectiveConfig config = one_hop_config_of(d, shape.target);
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
  CollectiveDesc d = desc_of(shape, reduction);
  CollectiveConfig config = one_hop_config_of(d, shape.target);
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
  CollectiveDesc d = desc_of(shape, reduction);
  CollectiveConfig config = config_of(d, shape.target, kind);
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
  CollectiveDesc d = desc_of(shape);
  CollectiveConfig config = one_hop_config_of(d, shape.target);
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

OpCase broadcast_case(const OpShape& shape, std::uint64_t seed) {
  CollectiveDesc d = desc_of(shape);
  CollectiveConfig config = fetching_config_of(d, shape.target);
  int root = d.world_size - 1;
  CaseBuilder b(d, config, broadcast(d, config, root), shape, seed);
  for (int r = 0; r < d.world_size; ++r) {
    for (std::int64_t i = 0; i < b.m * d.n; ++i) {
      b.expected(r)[static_cast<std::size_t>(i)] = b.input(root)[static_cast<std::size_t>(i)];
    }
  }
  return std::move(b.c);
}

// Of collectives of one rank with the others: here of one in the middle.
int middle_rank(const OpShape& shape) { return (shape.world_size - 1) / 2; }

using RootedProgram = Program (*)(const CollectiveDesc&, const CollectiveConfig&, int root);
Program with_middle_root(RootedProgram program, const OpShape& shape) {
  CollectiveDesc d = desc_of(shape);
  return program(d, fetching_config_of(d, shape.target), middle_rank(shape));
}

// What only the root gets; the others' memory is as it was.
using ElementOf = std::function<double(CaseBuilder&, std::int64_t row, std::int64_t col)>;
OpCase at_root_case(RootedProgram program, const OpShape& shape, std::uint64_t seed,
                    const ElementOf& element) {
  CollectiveDesc d = desc_of(shape);
  CaseBuilder b(d, fetching_config_of(d, shape.target), with_middle_root(program, shape), shape,
                seed);
  for (int r = 0; r < d.world_size; ++r) {
    Values before = random_values(static_cast<std::size_t>(d.m * d.n), d.dtype,
                                  seed * 2003 + static_cast<std::uint64_t>(r));
    b.c.inputs[static_cast<std::size_t>(r)][b.out] = before;
    b.expected(r) = before;
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

Program send_from_last(const CollectiveDesc& d, const CollectiveConfig& config, int root) {
  return send_to(d, config, d.world_size - 1, root);
}

OpCase send_case(const OpShape& shape, std::uint64_t seed) {
  return at_root_case(send_from_last, shape, seed,
                      [](CaseBuilder& b, std::int64_t row, std::int64_t col) {
                        return b.input(b.d.world_size - 1)[b.at(row, col)];
                      });
}

OpCase scatter_case(const OpShape& shape, std::uint64_t seed) {
  CollectiveDesc d = desc_of(shape);
  CaseBuilder b(d, fetching_config_of(d, shape.target), with_middle_root(scatter_from, shape),
                shape, seed);
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

OperatorInfo rooted_info(const char* name, const char* summary, RootedProgram program,
                         OpCase (*make_case)(const OpShape&, std::uint64_t)) {
  return {.name = name,
          .summary = summary,
          .program = [program](const OpShape& s) { return with_middle_root(program, s); },
          .make_case = make_case,
          .shapes = shapes,
          .large = large()};
}

}  // namespace

OperatorInfo all_gather_info() {
  return {.name = "all_gather",
          .summary = "every rank gets all rows of [m, n]",
          .program =
              [](const OpShape& s) {
                return all_gather(desc_of(s), one_hop_config_of(desc_of(s), s.target));
              },
          .make_case = all_gather_case,
          .shapes = shapes,
          .large = large()};
}

OperatorInfo reduce_scatter_info(Reduction reduction) {
  bool sums = reduction == Reduction::kSum;
  return {.name = sums ? "reduce_scatter" : "reduce_scatter_product",
          .summary = sums ? "every rank gets its rows of the sum over ranks of [m, n]"
                          : "every rank gets its rows of the product over ranks of [m, n]",
          .program =
              [reduction](const OpShape& s) {
                return reduce_scatter(desc_of(s, reduction),
                                      one_hop_config_of(desc_of(s), s.target));
              },
          .make_case = [reduction](
                           const OpShape& s,
                           std::uint64_t seed) { return reduce_scatter_case(s, seed, reduction); },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo all_reduce_info(AllReduceKind kind, Reduction reduction) {
  constexpr const char* kNames[] = {"all_reduce_one_shot", "all_reduce_two_shot",
                                    "all_reduce_packet", "all_reduce_ring"};
  bool sums = reduction == Reduction::kSum;
  return {.name = sums ? kNames[static_cast<std::size_t>(kind)] : "all_reduce_two_shot_max",
          .summary = sums ? "every rank gets the sum over ranks of [m, n]"
                          : "every rank gets the greatest of each element of [m, n]",
          .program =
              [kind, reduction](const OpShape& s) {
                return all_reduce(desc_of(s, reduction), config_of(desc_of(s), s.target, kind));
              },
          .make_case =
              [kind, reduction](const OpShape& s, std::uint64_t seed) {
                return all_reduce_case(s, seed, kind, reduction);
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo all_to_all_info() {
  return {.name = "all_to_all",
          .summary = "block d of [P, m, n] goes to rank d, its first rows as counted",
          .program =
              [](const OpShape& s) {
                return all_to_all(desc_of(s), one_hop_config_of(desc_of(s), s.target));
              },
          .make_case = all_to_all_case,
          .shapes = shapes,
          .large = large()};
}

OperatorInfo broadcast_info() {
  return {.name = "broadcast",
          .summary = "every rank gets [m, n] of the last rank",
          .program =
              [](const OpShape& s) {
                CollectiveDesc d = desc_of(s);
                return broadcast(d, fetching_config_of(d, s.target), d.world_size - 1);
              },
          .make_case = broadcast_case,
          .shapes = shapes,
          .large = large()};
}

OperatorInfo reduce_info() {
  return rooted_info("reduce", "a rank gets the sum over ranks of [m, n]", reduce_to, reduce_case);
}

OperatorInfo gather_info() {
  return rooted_info("gather", "a rank gets all rows of [m, n]", gather_to, gather_case);
}

OperatorInfo send_info() {
  return rooted_info("send", "a rank gets [m, n] of the last", send_from_last, send_case);
}

OperatorInfo scatter_info() {
  return rooted_info("scatter", "every rank gets its rows of one rank's [m, n]", scatter_from,
                     scatter_case);
}

}  // namespace stretto
