#include "stretto/ops/collectives/collective_shapes.h"

#include <algorithm>

namespace stretto {
namespace {

constexpr std::int64_t kLineColumns = 256;  // 16-bit packets of so many go in lines on GPUs

bool is_large(const CollectiveDesc& d) { return d.m * d.n >= 100'000; }

std::vector<OpShape> shapes(int world_size) {
  return {{.world_size = world_size, .m = 16, .n = 32, .dtype = DType::kF32},
          {.world_size = world_size, .m = 37, .n = 29, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 5, .n = 7, .dtype = DType::kF16},
          {.world_size = world_size, .m = 50, .n = 33, .dtype = DType::kBF16},
          {.world_size = world_size, .m = 9, .n = 2 * kLineColumns, .dtype = DType::kBF16}};
}

// Activations of 4096 tokens; 32 MB.
OpShape large() { return {.m = 4096, .n = 4096, .dtype = DType::kBF16}; }

OperatorInfo rooted_info(const char* name, const char* summary, RootedProgram program) {
  return {.name = name,
          .summary = summary,
          .program = [program](const OpShape& s) { return with_middle_root(program, s); },
          .shapes = shapes,
          .large = large()};
}

}  // namespace

CollectiveDesc collective_desc(const OpShape& shape, Reduction reduction) {
  return {.dtype = shape.dtype,
          .m = shape.m > 0 ? shape.m : 64,
          .n = shape.n > 0 ? shape.n : 96,
          .world_size = shape.world_size,
          .reduction = reduction};
}

// Small tiles for small shapes, so that tests have many of them.
CollectiveConfig small_tiles_config(const CollectiveDesc& d, Target target) {
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
  if (quantizes(d)) {
    c.push = true;
    c.packets = false;
    c.tile_cols = d.n;
  }
  return c;
}

// Where nobody pushes.
CollectiveConfig fetching_config(const CollectiveDesc& d, Target target) {
  if (is_large(d)) return default_fetching_config(d, target);
  CollectiveConfig c = small_tiles_config(d, target);
  c.push = c.packets = false;
  c.ring_slots = 0;
  return c;
}

// Of gather, scatter and all-to-all: in rings some workers only receive.
CollectiveConfig one_hop_config(const CollectiveDesc& d, Target target) {
  if (is_large(d)) return default_config(d, target);
  CollectiveConfig c = small_tiles_config(d, target);
  if (c.ring_slots > 0) c.num_receivers = 2;
  return c;
}

CollectiveConfig small_tiles_config(const CollectiveDesc& d, Target target, AllReduceKind kind) {
  bool pushes = kind == AllReduceKind::kTwoShot;
  CollectiveConfig c = pushes ? small_tiles_config(d, target) : fetching_config(d, target);
  if (kind == AllReduceKind::kRing) c.num_workers = 1;
  c.all_reduce = kind;
  return c;
}

// Of collectives of one rank with the others: here of one in the middle.
int middle_rank(const OpShape& shape) { return (shape.world_size - 1) / 2; }

Program with_middle_root(RootedProgram program, const OpShape& shape) {
  CollectiveDesc d = collective_desc(shape);
  return program(d, fetching_config(d, shape.target), middle_rank(shape));
}

Program send_from_last(const CollectiveDesc& d, const CollectiveConfig& config, int root) {
  return send_to(d, config, d.world_size - 1, root);
}

OperatorInfo all_gather_info() {
  return {.name = "all_gather",
          .summary = "every rank gets all rows of [m, n]",
          .program =
              [](const OpShape& s) {
                return all_gather(collective_desc(s), one_hop_config(collective_desc(s), s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo reduce_scatter_info(Reduction reduction) {
  bool sums = reduction == Reduction::kSum, multiplies = reduction == Reduction::kPremulSum;
  return {.name = sums         ? "reduce_scatter"
                  : multiplies ? "reduce_scatter_premul_sum"
                               : "reduce_scatter_product",
          .summary = sums ? "every rank gets its rows of the sum over ranks of [m, n]"
                     : multiplies
                         ? "every rank gets its rows of the sum over ranks of factor * [m, n]"
                         : "every rank gets its rows of the product over ranks of [m, n]",
          .program =
              [reduction](const OpShape& s) {
                return reduce_scatter(collective_desc(s, reduction),
                                      one_hop_config(collective_desc(s), s.target));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo all_reduce_info(AllReduceKind kind, Reduction reduction) {
  constexpr const char* kNames[] = {"all_reduce_one_shot", "all_reduce_two_shot",
                                    "all_reduce_packet", "all_reduce_ring"};
  bool sums = reduction == Reduction::kSum, multiplies = reduction == Reduction::kPremulSum;
  return {.name = sums         ? kNames[static_cast<std::size_t>(kind)]
                  : multiplies ? "all_reduce_one_shot_premul_sum"
                               : "all_reduce_two_shot_max",
          .summary = sums         ? "every rank gets the sum over ranks of [m, n]"
                     : multiplies ? "every rank gets the sum over ranks of factor * [m, n]"
                                  : "every rank gets the greatest of each element of [m, n]",
          .program =
              [kind, reduction](const OpShape& s) {
                return all_reduce(collective_desc(s, reduction),
                                  small_tiles_config(collective_desc(s), s.target, kind));
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo all_to_all_info() {
  return {.name = "all_to_all",
          .summary = "block d of [P, m, n] goes to rank d, its first rows as counted",
          .program =
              [](const OpShape& s) {
                return all_to_all(collective_desc(s), one_hop_config(collective_desc(s), s.target));
              },
          .shapes = shapes,
          .large = large()};
}

namespace {

// A collective of what travels as int8.
using OfDesc = Program (*)(const CollectiveDesc&, const CollectiveConfig&);
OperatorInfo int8_info(const char* name, const char* summary, OfDesc program) {
  return {.name = name,
          .summary = summary,
          .program =
              [program](const OpShape& s) {
                CollectiveDesc d = int8_desc(s);
                return program(d, int8_config(d, s.target, program == all_reduce));
              },
          .shapes = shapes,
          .large = large()};
}

}  // namespace

CollectiveDesc int8_desc(const OpShape& shape) {
  CollectiveDesc d = collective_desc(shape);
  d.payload = Payload::kInt8;
  return d;
}

CollectiveConfig int8_config(const CollectiveDesc& d, Target target, bool two_hops) {
  return two_hops ? small_tiles_config(d, target, AllReduceKind::kTwoShot)
                  : one_hop_config(d, target);
}

OperatorInfo all_gather_int8_info() {
  return int8_info("all_gather_int8",
                   "every rank gets all rows of [m, n], as int8 with a scale for each row",
                   all_gather);
}

OperatorInfo reduce_scatter_int8_info() {
  return int8_info(
      "reduce_scatter_int8",
      "every rank gets its rows of the sum over ranks of [m, n], whose parts travel as "
      "int8 with a scale for each row",
      reduce_scatter);
}

OperatorInfo all_reduce_int8_info() {
  return int8_info("all_reduce_int8",
                   "every rank gets the sum over ranks of [m, n], which travels as int8 with a "
                   "scale for each row",
                   all_reduce);
}

OperatorInfo all_to_all_int8_info() {
  return int8_info("all_to_all_int8",
                   "block d of [P, m, n] goes to rank d as int8 with a scale for each row",
                   all_to_all);
}

OperatorInfo broadcast_info() {
  return {.name = "broadcast",
          .summary = "every rank gets [m, n] of the last rank",
          .program =
              [](const OpShape& s) {
                CollectiveDesc d = collective_desc(s);
                return broadcast(d, fetching_config(d, s.target), d.world_size - 1);
              },
          .shapes = shapes,
          .large = large()};
}

OperatorInfo reduce_info() {
  return rooted_info("reduce", "a rank gets the sum over ranks of [m, n]", reduce_to);
}

OperatorInfo gather_info() {
  return rooted_info("gather", "a rank gets all rows of [m, n]", gather_to);
}

OperatorInfo send_info() {
  return rooted_info("send", "a rank gets [m, n] of the last", send_from_last);
}

OperatorInfo scatter_info() {
  return rooted_info("scatter", "every rank gets its rows of one rank's [m, n]", scatter_from);
}

}  // namespace stretto
