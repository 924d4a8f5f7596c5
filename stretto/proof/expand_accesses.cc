#include "stretto/proof/expand_accesses.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/tables.h"

namespace stretto {
namespace {

// Where a box may begin, below zero too: sums of such a place and a size stay within 64 bits.
constexpr std::int64_t kMaxOrigin = std::int64_t{1} << 60;

// Elements masked at the destination are not read at the source.
void mask_source(LooseBox& from, int from_dim, const LooseBox& to, int to_dim) {
  if (from_dim < 0 || to_dim < 0) return;
  auto f = at(from_dim), t = at(to_dim);
  std::int64_t shift = from.origin[f] - to.origin[t];
  from.limit.lo[f] = std::max(from.limit.lo[f], to.limit.lo[t] + shift);
  from.limit.hi[f] = std::min(from.limit.hi[f], to.limit.hi[t] + shift);
}

// Of a dimension that is all in the number of the part.
void only_element(LooseBox& box, int dim) {
  box.origin[at(dim)] = box.limit.lo[at(dim)] = 0;
  box.size[at(dim)] = box.limit.hi[at(dim)] = 1;
}

}  // namespace

void AccessExpander::access(const Op& op, AccessKind kind) {
  const Tensor& tensor = state_.program.tensors[at(op.region->tensor)];
  if (tensor.packet) {
    state_.reject(op,
                  fmt::format("'{}' is a packet buffer: only packet loads and stores may touch it",
                              tensor.name));
  }
  add(op, 0, op.region->tensor, resolve(*op.region), kind);
}

void AccessExpander::read_from(const Op& op, std::int64_t first, std::optional<std::int64_t> meets,
                               const std::function<void(std::int64_t)>& at_iteration) {
  constexpr std::int64_t kAll = std::int64_t{1} << 38;  // rows, more than any tensor has
  const Tensor& tensor = state_.program.tensors[at(op.region->tensor)];
  if (meets) {
    at_iteration(*meets);
    Target target = resolve(*op.region);
    Access there{.tensor = op.region->tensor,
                 .rank = target.rank,
                 .kind = AccessKind::kRead,
                 .tile = state_.tile,
                 .op = &op};
    auto forms = std::make_shared<LooseForms>(LooseForms{target.origin, target.ends, state_.there});
    state_.recorder.note_reach({there, 0, target.box, forms});
  }
  at_iteration(first + 1);
  Target next = resolve(*op.region);
  at_iteration(first);
  Target target = resolve(*op.region);
  bool same_ends = true, upwards = true;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    same_ends &= key_of(target.ends[d]) == key_of(next.ends[d]);
    std::int64_t step = next.origin[d].value - target.origin[d].value;
    upwards &= step >= 0 && next.origin[d].slope == target.origin[d].slope;
    if (step > 0) target.box.size[d] = kAll;
  }
  bool plain = !tensor.packet && same_ends && upwards && target.rank == next.rank;
  if (!plain) throw DependsOnTable{"what a loop over slots reads"};
  target.exact = false;  // it is no one tile
  add(op, 0, op.region->tensor, target, AccessKind::kRead, /*packet=*/false, /*reaches=*/false);
}

void AccessExpander::rows_of_part(const Op& op, const PartOfRows& of) {
  const TableCells& cells = *state_.cells[at(op.region->tensor)];
  Target target = resolve(*op.region);
  auto rows = at(cells.dim), part_dim = state_.program.tensors[at(op.region->tensor)].shape.size();
  // Of the other dimensions nothing goes by a table.
  target.exact = true;
  for (std::size_t d = 0; d < op.region->origin.size(); ++d) {
    if (d != rows) target.exact &= !state_.scope.goes_by_table(op.region->origin[d]);
  }
  const Expr& col_end = op.region->col_end;
  if (col_end.has_value()) target.exact &= !state_.scope.goes_by_table(col_end);
  target.origin[rows] = {.value = of.first};
  target.origin[part_dim] = {.value = of.part};
  target.box.origin[rows] = of.first;
  target.box.size[rows] = op.region->rows;
  target.box.origin[part_dim] = of.part;
  target.box.size[part_dim] = 1;
  target.without = of.fact;
  add(op, 0, op.region->tensor, target, AccessKind::kWrite, /*packet=*/false, of.meets);
}

void AccessExpander::scattered(const Op& op) {
  Region region = *op.region;
  if (region.row_dim < 0) state_.reject(op, "needs a row dimension");
  if (masks_open()) region.origin[at(region.row_dim)] = Expr(0);  // rows end behind the first one
  Target target = resolve(region);
  target.box.origin[at(region.row_dim)] = 0;
  target.box.size[at(region.row_dim)] = state_.graph.shapes[at(region.tensor)][at(region.row_dim)];
  target.origin[at(region.row_dim)] = {};
  if (masks_open()) {  // it ends where the tensor does
    target.box.size[at(region.row_dim)] =
        bound_shape(state_.program, region.tensor)[at(region.row_dim)];
  } else if (state_.region != nullptr) {
    state_.region->pin(state_.shape_forms[at(region.tensor)][at(region.row_dim)]);
  }
  span_all_parts(region.tensor, target.box);
  target.part.reset();
  bool writes = op.code == OpCode::kStoreRows;
  if (writes && state_.program.tensors[at(region.tensor)].kind == TensorKind::kOutput) {
    state_.reject(op, fmt::format("rows of output '{}' are chosen at run time, so it cannot be "
                                  "shown that each is written exactly once",
                                  state_.program.tensors[at(region.tensor)].name));
  }
  state_.may_depth += writes ? 1 : 0;
  state_.untold_depth += writes ? 1 : 0;
  add(op, 0, region.tensor, target, writes ? AccessKind::kWrite : AccessKind::kRead);
  state_.may_depth -= writes ? 1 : 0;
  state_.untold_depth -= writes ? 1 : 0;
}

void AccessExpander::copy_from(const Op& op) {
  Target from = resolve(*op.region), to = resolve(*op.region2);
  // Rows of boxes that span all parts do not correspond one to one.
  bool rows_match = (!state_.cells[at(op.region->tensor)] || from.part) &&
                    (!state_.cells[at(op.region2->tensor)] || to.part);
  if (masks_open()) {
    if (from.exact && to.exact) {
      mask_open(from, op.region->row_dim, to, op.region2->row_dim);
      mask_open(from, op.region->col_dim, to, op.region2->col_dim);
    }
    refuse_packets(op);
    return add(op, 0, op.region->tensor, from, AccessKind::kRead);
  }
  if (state_.region != nullptr) {
    check_target(op, op.region->tensor, from, AccessKind::kRead);
    note_masked(*op.region, from, op.region->row_dim, to, op.region2->row_dim);
    note_masked(*op.region, from, op.region->col_dim, to, op.region2->col_dim);
    note_box(op.region2->tensor, to);
  }
  if (from.exact && to.exact && rows_match) {
    mask_source(from.box, op.region->row_dim, to.box, op.region2->row_dim);
    mask_source(from.box, op.region->col_dim, to.box, op.region2->col_dim);
  }
  refuse_packets(op);
  if (is_empty(clip(to.box))) return;
  add(op, 0, op.region->tensor, from, AccessKind::kRead);
}

void AccessExpander::refuse_packets(const Op& op) const {
  if (state_.program.tensors[at(op.region->tensor)].packet ||
      state_.program.tensors[at(op.region2->tensor)].packet) {
    state_.reject(op, "packet buffers cannot be copied");
  }
}

// Of the source what the destination has room for. It begins in its tensor.
void AccessExpander::mask_open(Target& from, int from_dim, const Target& to, int to_dim) {
  if (from_dim < 0 || to_dim < 0) return;
  auto f = at(from_dim), t = at(to_dim);
  SizeRegion& region = *state_.region;
  region.keep_sign(to.origin[t]);
  if (to.origin[t].value < 0) throw DependsOnTable{"where a copy is cut off"};
  SizeForm shift = region.apply(ExprOp::kSub, from.origin[f], to.origin[t]);
  for (const SizeForm& end : to.ends[t]) {
    from.ends[f].push_back(region.apply(ExprOp::kAdd, end, shift));
  }
}

void AccessExpander::copy_to(const Op& op) {
  Target to = resolve(*op.region2);
  if (masks_open() || !is_empty(clip(to.box))) {
    return add(op, 1, op.region2->tensor, to, AccessKind::kWrite);
  }
  Access none{.tensor = op.region2->tensor,
              .rank = to.rank,
              .kind = AccessKind::kWrite,
              .tile = state_.tile,
              .op = &op};
  state_.recorder.note_reach({none, 1, to.box});
}

void AccessExpander::table_reads(const Op& op, const Expr& expr) {
  if (!uses_table(expr)) return;
  const ExprNode& n = expr.node();
  if (n.op == ExprOp::kSelect) return selected_reads(op, n);
  for (const Expr& arg : n.args) table_reads(op, arg);  // of && and ||, too: both are evaluated
  if (n.op != ExprOp::kTable) return;
  Target target{.rank = state_.rank, .last_rank = state_.rank};
  target.box.limit = whole_tensor(state_.graph, static_cast<int>(n.value));
  target.box.size.fill(1);
  for (std::size_t d = 0; d < n.args.size(); ++d) {
    ValueRange r = state_.scope.range(n.args[d]);
    check_entry(op, n, d, r);
    target.box.origin[d] = r.lo;
    target.box.size[d] = r.hi - r.lo + 1;
    if (state_.region == nullptr) continue;
    target.origin[d] = {.value = r.lo};
    target.ends[d] = {state_.shape_forms[at(static_cast<int>(n.value))][d]};
  }
  span_all_parts(static_cast<int>(n.value), target.box);
  add(op, 2, static_cast<int>(n.value), target, AccessKind::kRead);
}

// Of the two values one is evaluated; where a table decides which, each may be.
void AccessExpander::selected_reads(const Op& op, const ExprNode& select) {
  table_reads(op, select.args[0]);
  ValueRange condition = state_.scope.range(select.args[0]);
  if (condition.exact()) return table_reads(op, select.args[condition.lo != 0 ? 1 : 2]);
  ++state_.may_depth;
  table_reads(op, select.args[1]);
  table_reads(op, select.args[2]);
  --state_.may_depth;
}

// Whenever the program is here. Otherwise the region is cut to where it exists, as at the sample.
bool AccessExpander::exists_at_all_sizes(const ExprNode& entry, std::size_t dim,
                                         std::int64_t index) const {
  SizeForm behind = state_.shape_forms[at(static_cast<int>(entry.value))][dim];
  behind.value -= index;
  if (state_.region->least(behind) > 0) return true;
  // A condition that so many rows are there says that so many entries are.
  for (const SizeForm& there : state_.there) {
    if (state_.region->positive_with(there, behind)) return true;
  }
  if (behind.value < 1) return false;
  state_.region->keep_sign({.value = behind.value - 1, .slope = behind.slope});
  return true;
}

// Entries are not masked: one that is not there has no value. Where a table decides whether it is
// read, that may leave out this index, which is not shown.
void AccessExpander::check_entry(const Op& op, const ExprNode& entry, std::size_t dim,
                                 const ValueRange& index) {
  std::int64_t size = state_.graph.shapes[at(static_cast<int>(entry.value))][dim];
  if (state_.region != nullptr) {
    bool exists = index.lo >= 0 && exists_at_all_sizes(entry, dim, index.hi);
    if (!exists) throw DependsOnTable{"which entries of a table there are"};
    return;
  }
  if (index.lo >= 0 && index.hi < size) return;
  const Tensor& table = state_.program.tensors[at(static_cast<int>(entry.value))];
  std::string which =
      index.exact() ? fmt::format("{}", index.lo) : fmt::format("{} to {}", index.lo, index.hi);
  std::string what =
      fmt::format("index {} of dimension {} of table '{}' does not exist, there are {} entries",
                  which, dim, table.name, size);
  if (state_.may_depth == 0) state_.reject(op, what);
  if (state_.graph.unsure_entry.first.empty())
    state_.graph.unsure_entry = {describe_loc(&op), what};
}

AccessExpander::Target AccessExpander::resolve_with_forms(const Region& region) {
  Target target{.rank = state_.rank, .last_rank = state_.rank};
  if (region.rank.has_value()) {
    ValueRange r = state_.scope.range(region.rank);
    target.exact = r.exact();
    target.rank = static_cast<int>(r.lo);
    target.last_rank = static_cast<int>(r.hi);
  }
  LooseBox& box = target.box;
  box.limit = whole_tensor(state_.graph, region.tensor);
  box.size.fill(1);
  std::array<std::int64_t, kMaxTensorDims> more{};  // where a table decides where it begins
  for (std::size_t d = 0; d < region.origin.size(); ++d) {
    if (masks_open() && state_.scope.goes_by_table(region.origin[d])) {
      ValueRange r = state_.scope.range(region.origin[d]);
      if (r.hi > kMaxOrigin) throw DependsOnTable{"where a box begins"};
      target.origin[d] = {.value = r.lo};
      more[d] = r.hi - r.lo;
      target.exact &= r.exact();
    } else {
      target.origin[d] = state_.scope.form(region.origin[d]);
    }
    target.end[d] = state_.shape_forms[at(region.tensor)][d];
    if (masks_open()) target.ends[d] = {target.end[d]};
    box.origin[d] = target.origin[d].value;
    if (box.origin[d] < -kMaxOrigin || box.origin[d] > kMaxOrigin) {
      throw NoValue(fmt::format("a box begins at {} in dimension {}, need {} to {}", box.origin[d],
                                d, -kMaxOrigin, kMaxOrigin));
    }
    if (static_cast<int>(d) == region.row_dim) box.size[d] = region.rows;
    if (static_cast<int>(d) == region.col_dim) box.size[d] = region.cols;
    box.size[d] += more[d];
  }
  if (region.row_dim >= 0) cut_off(region, region.row_dim, region.row_end, target);
  cut_off(region, region.col_dim, region.col_end, target);
  span_all_parts(region.tensor, target);
  return target;
}

// Of a region with masks open: all rows of all parts, wherever it is.
void AccessExpander::span_all_parts(int tensor, Target& target) const {
  const auto& cells = state_.cells[at(tensor)];
  if (!cells) return;
  span_all_parts(tensor, target.box);
  auto part_dim = state_.program.tensors[at(tensor)].shape.size();
  for (std::size_t d : {at(cells->dim), part_dim}) {
    target.origin[d] = {};
    target.ends[d] = {state_.shape_forms[at(tensor)][d]};
  }
  target.exact = false;
}

void AccessExpander::cut_off(const Region& region, int dim, const Expr& end, Target& target) {
  if (!end.has_value()) return;
  // Of what is read there nothing is written down (trace_recorder.h).
  if (masks_open() && nobody_writes(state_.program.tensors[at(region.tensor)])) return;
  if (masks_open() && state_.scope.goes_by_table(end)) {
    ValueRange r = state_.scope.range(end);
    target.exact &= r.exact();
    target.ends[at(dim)].push_back({.value = r.hi});
    std::optional<SizeForm> most = r.exact() ? std::nullopt : state_.scope.most_of(end);
    if (most) target.ends[at(dim)].push_back(*most);
    target.box.limit.hi[at(dim)] = std::min(target.box.limit.hi[at(dim)], r.hi);
    return;
  }
  if (masks_open()) {
    // Iterations that are only looked at may begin elsewhere, but nothing lies before zero.
    SizeForm first = state_.recorder.diverts() ? SizeForm{} : target.origin[at(dim)];
    std::vector<SizeForm> ends = state_.scope.ends_behind(first, end);
    for (const SizeForm& f : ends) {
      target.ends[at(dim)].push_back(f);
      target.box.limit.hi[at(dim)] = std::min(target.box.limit.hi[at(dim)], f.value);
    }
    return;
  }
  SizeForm form = state_.scope.form(end);
  SizeForm& known = target.end[at(dim)];
  bool exists = target.rank >= 0 && target.rank < state_.program.world_size;
  if (exists) state_.region->note_end(region.tensor, target.rank, dim, form);
  known = state_.region->apply(ExprOp::kMin, known, form);
  target.box.limit.hi[at(dim)] = known.value;
}

void AccessExpander::note_masked(const Region& from, const Target& source, int from_dim,
                                 const Target& to, int to_dim) {
  if (from_dim < 0 || to_dim < 0) return;
  SizeRegion& region = *state_.region;
  SizeForm shift = region.apply(ExprOp::kSub, source.origin[at(from_dim)], to.origin[at(to_dim)]);
  region.note_end(from.tensor, source.rank, from_dim, shift);
  region.note_end(from.tensor, source.rank, from_dim,
                  region.apply(ExprOp::kAdd, to.end[at(to_dim)], shift));
}

// Whether anything is left of it decides whether the source is read.
void AccessExpander::note_box(int tensor, const Target& to) {
  if (to.rank < 0 || to.rank >= state_.program.world_size) return;
  for (std::size_t d = 0; d < state_.shape_forms[at(tensor)].size(); ++d) {
    auto dim = static_cast<int>(d);
    state_.region->note_end(tensor, to.rank, dim, to.origin[d]);
    SizeForm end = to.origin[d];
    end.value += to.box.size[d];
    state_.region->note_end(tensor, to.rank, dim, end);
  }
}

AccessExpander::Target AccessExpander::resolve(const Region& region) {
  if (state_.region != nullptr) return resolve_with_forms(region);
  Target target{.rank = state_.rank, .last_rank = state_.rank};
  if (region.rank.has_value()) {
    ValueRange r = state_.scope.range(region.rank);
    target.exact = r.exact();
    target.rank = static_cast<int>(r.lo);
    target.last_rank = static_cast<int>(r.hi);
  }
  LooseBox& box = target.box;
  box.limit = whole_tensor(state_.graph, region.tensor);
  box.size.fill(1);
  const auto& cells = state_.cells[at(region.tensor)];
  bool rows_exact = true;  // in the dimension that a table deals out
  for (std::size_t d = 0; d < region.origin.size(); ++d) {
    ValueRange r = state_.scope.range(region.origin[d]);
    if (r.lo < -kMaxOrigin || r.hi > kMaxOrigin) {
      throw NoValue(fmt::format("a box begins at {} in dimension {}, need {} to {}",
                                r.hi > kMaxOrigin ? r.hi : r.lo, d, -kMaxOrigin, kMaxOrigin));
    }
    (cells && cells->deals(static_cast<int>(d)) ? rows_exact : target.exact) &= r.exact();
    box.origin[d] = r.lo;
    box.size[d] = r.hi - r.lo;
    if (static_cast<int>(d) == region.row_dim) {
      box.size[d] += region.rows;
    } else if (static_cast<int>(d) == region.col_dim) {
      box.size[d] += region.cols;
    } else {
      box.size[d] += 1;
    }
  }
  auto limit = [&](int dim, const Expr& end) {
    if (!end.has_value()) return;
    ValueRange r = state_.scope.range(end);
    (cells && cells->deals(dim) ? rows_exact : target.exact) &= r.exact();
    box.limit.hi[at(dim)] = std::min(box.limit.hi[at(dim)], r.hi);
  };
  if (cells) box.limit.hi[at(cells->dim)] = cells->rows;
  if (cells && cells->digit_dim >= 0) box.limit.hi[at(cells->digit_dim)] = cells->by;
  if (region.row_dim >= 0) limit(region.row_dim, region.row_end);
  limit(region.col_dim, region.col_end);
  if (cells) to_cells(region, rows_exact, target);
  return target;
}

void AccessExpander::to_cells(const Region& region, bool rows_exact, Target& target) {
  const TableCells& cells = *state_.cells[at(region.tensor)];
  auto d = at(cells.dim), part_dim = state_.program.tensors[at(region.tensor)].shape.size();
  LooseBox& box = target.box;
  bool is_own = target.rank == state_.rank && target.last_rank == state_.rank;
  if (is_own) target.part = part_of(region, cells);
  if (target.part) {
    box.origin[d] = target.part->offset;
    box.size[d] = cells.dim == region.row_dim ? region.rows : 1;
    box.limit.lo[d] = 0;
    box.limit.hi[d] = cells.height;
    box.origin[part_dim] = target.part->entry;
    if (cells.digit_dim >= 0) only_element(box, cells.digit_dim);
    return;
  }
  auto all_of = [&](std::size_t dim, std::int64_t rows) {
    return box.origin[dim] <= 0 && box.limit.hi[dim] == rows &&
           box.origin[dim] + box.size[dim] >= rows;
  };
  auto none_of = [&](std::size_t dim) {
    return std::min(box.origin[dim] + box.size[dim], box.limit.hi[dim]) <=
           std::max(box.origin[dim], std::int64_t{0});
  };
  bool everything = all_of(d, cells.rows), nothing = none_of(d);
  if (cells.digit_dim >= 0) {
    everything &= all_of(at(cells.digit_dim), cells.by);
    nothing |= none_of(at(cells.digit_dim));
  }
  const std::int64_t origin = box.origin[d], size = box.size[d];
  const bool outside = origin >= cells.rows || origin + size <= 0;
  span_all_parts(region.tensor, box);
  if (nothing) box.size[d] = 0;
  // Where it lies outside whatever a permutation says, it is seen to (reach.h).
  if (nothing && outside && !cells.is_partition()) {
    box.origin[d] = origin;
    box.size[d] = size;
  }
  target.exact &= rows_exact && (everything || nothing);
}

std::optional<TablePoint> AccessExpander::part_of(const Region& region, const TableCells& cells) {
  EvalScope& scope = state_.scope;
  std::optional<TablePoint> from = scope.quotient_point(region.origin[at(cells.dim)], cells.by);
  if (!from || from->table != cells.table || from->offset < 0 || from->entry < 0 ||
      from->entry >= cells.count || cells.dim == region.col_dim) {
    return std::nullopt;
  }
  if (cells.leaves_out && from->entry + 1 == cells.count) return std::nullopt;
  if (cells.digit_dim >= 0) {
    std::optional<TablePoint> digit =
        scope.remainder_point(region.origin[at(cells.digit_dim)], cells.by);
    bool one_row = cells.digit_dim != region.row_dim && cells.digit_dim != region.col_dim;
    bool same = digit && digit->table == from->table && digit->entry == from->entry;
    if (!same || !one_row) return std::nullopt;
  }
  bool is_row = cells.dim == region.row_dim;
  bool ends_with_part = false;
  if (cells.is_partition()) {
    std::optional<TablePoint> end;
    if (is_row) end = scope.table_point(region.row_end);
    ends_with_part = from->scale == 1 && end &&
                     *end == TablePoint{.table = from->table, .entry = from->entry + 1};
  } else {
    bool masked = is_row && region.row_end.has_value();
    ends_with_part = from->scale == cells.block && !masked &&
                     from->offset + (is_row ? region.rows : 1) <= cells.block;
  }
  return ends_with_part ? from : std::nullopt;
}

void AccessExpander::span_all_parts(int tensor, LooseBox& box) const {
  const auto& cells = state_.cells[at(tensor)];
  if (!cells) return;
  auto d = at(cells->dim), part_dim = state_.program.tensors[at(tensor)].shape.size();
  box.origin[d] = box.origin[part_dim] = box.limit.lo[d] = 0;
  box.size[d] = box.limit.hi[d] = cells->height;
  box.size[part_dim] = cells->count;
  if (cells->digit_dim >= 0) only_element(box, cells->digit_dim);
}

void AccessExpander::check_target(const Op& op, int tensor_idx, const Target& target,
                                  AccessKind kind) const {
  const Tensor& tensor = state_.program.tensors[at(tensor_idx)];
  int world = state_.program.world_size;
  for (int rank : {target.rank, target.last_rank}) {
    if (rank < 0 || rank >= world) {
      state_.reject(op, fmt::format("rank {} of '{}' does not exist, there are ranks 0 to {}", rank,
                                    tensor.name, world - 1));
    }
    if (rank != state_.rank && tensor.space == Space::kLocal) {
      state_.reject(op, fmt::format("rank {} reaches for local tensor '{}' of rank {}", state_.rank,
                                    tensor.name, rank));
    }
  }
  if (kind != AccessKind::kRead && tensor.kind == TensorKind::kInput) {
    state_.reject(op, fmt::format("input '{}' is written", tensor.name));
  }
  if (kind == AccessKind::kReduce && is_made_table(tensor)) {
    state_.reject(
        op, fmt::format("table '{}' is added to; its entries are stored, each once", tensor.name));
  }
}

void AccessExpander::add(const Op& op, int which, int tensor, const Target& target, AccessKind kind,
                         bool packet, bool reaches) {
  check_target(op, tensor, target, kind);
  bool is_write = kind != AccessKind::kRead;
  int may_depth = state_.may_depth;
  for (const TablePoint& p : state_.inhabited) {
    bool follows = target.part && target.part->table == p.table && target.part->entry == p.entry &&
                   target.part->offset >= p.offset;
    if (follows) --may_depth;
  }
  Access a{.tensor = tensor,
           .rank = target.rank,
           .kind = kind,
           .may = is_write && (may_depth > 0 || !target.exact),
           .packet = packet,
           .choice = choice_of(tensor, target),
           .tile = state_.tile,
           .op = &op};
  a.sure = a.may && target.exact && state_.untold_depth == 0;
  bool by_tile =
      op.code == OpCode::kLoad || op.code == OpCode::kStore || op.code == OpCode::kReduceStore;
  bool one_part = !state_.cells[at(tensor)] || target.part;
  a.tiled = by_tile && which == 0 && target.exact && one_part;
  if (a.may && state_.program.tensors[at(tensor)].kind == TensorKind::kOutput) {
    throw DependsOnTable{"where an output is written"};
  }
  std::shared_ptr<const LooseForms> forms;
  if (state_.region != nullptr) {
    forms = std::make_shared<LooseForms>(LooseForms{target.origin, target.ends, state_.there});
  }
  for (a.rank = target.rank; a.rank <= target.last_rank; ++a.rank) {
    state_.recorder.add({a, which, target.box, forms, reaches});
  }
}

// Of a part of the rows nothing is touched unless it has them.
int AccessExpander::choice_of(int tensor, const Target& target) const {
  if (target.without >= 0) {
    std::vector<int> facts = state_.facts();
    std::erase(facts, target.without);
    return facts.empty() ? TableChoices::kAlways : state_.graph.choices->choice(std::move(facts));
  }
  const auto& cells = state_.cells[at(tensor)];
  bool in_part = state_.deciding.any && target.part && cells && cells->is_partition();
  if (!in_part) return state_.choice();
  std::vector<int> facts = state_.facts();
  facts.push_back(state_.graph.choices->fact(inhabited_from(*target.part)));
  return state_.graph.choices->choice(std::move(facts));
}

// Rows that are there at all sizes, and the others: the end of the tile need not be decided then,
// which may be the larger of a number and of what sizes make.
std::vector<Region> AccessExpander::rows_apart(const Region& region) {
  if (!masks_open() || region.row_dim < 0 || !region.row_end.has_value()) return {region};
  std::optional<SizeForm> from = state_.scope.open_form(region.origin[at(region.row_dim)]);
  if (!from || !from->is_constant()) return {region};
  std::optional<std::int64_t> end = state_.scope.end_at_all_sizes(*from, region.row_end);
  if (!end || *end <= from->value || *end >= from->value + region.rows) return {region};
  Region sure = region, more = region;
  sure.rows = *end - from->value;
  sure.row_end = Expr();
  more.origin[at(region.row_dim)] = Expr(*end);
  more.rows = region.rows - sure.rows;
  return {sure, more};
}

// A store releases its packets after writing; a load reads after the tags have come.
void AccessExpander::packet(const Op& op) {
  if (!state_.program.tensors[at(op.region->tensor)].packet) {
    state_.reject(op, "needs a packet buffer");
  }
  if (state_.may_depth > 0) throw DependsOnTable{"whether a packet is stored or loaded"};
  for (const Region& rows : rows_apart(*op.region)) packet(op, rows);
}

void AccessExpander::packet(const Op& op, const Region& region) {
  bool stores = op.code == OpCode::kStorePacket;
  int tensor = region.tensor;
  Target target = resolve(region);
  if (!target.exact) throw DependsOnTable{"where a packet lies"};
  auto last = state_.program.tensors[at(tensor)].shape.size() - 1;
  if (masks_open()) {
    state_.region->pin(target.origin[last]);
    for (const SizeForm& end : target.ends[last]) state_.region->pin(end);
  } else if (state_.region != nullptr) {  // places are rounded to whole packets
    for (const auto* forms : {&target.origin, &target.end}) {
      for (const SizeForm& form : *forms) state_.region->pin(form);
    }
    target.origin.fill({});
  }
  widen_to_packets(op, target.box);
  if (masks_open()) {
    const LooseBox& box = target.box;
    target.origin[last] = {};
    std::int64_t end = std::min(box.origin[last] + box.size[last], box.limit.hi[last]);
    target.ends[last] = {{.value = end}};
  }
  Sync sync{.kind = stores ? SyncKind::kPacketStore : SyncKind::kPacketLoad,
            .choice = state_.choice(),
            .tile = state_.tile,
            .op = &op};
  std::size_t known = state_.recorder.agent().accesses.size();
  if (stores) add(op, 0, tensor, target, AccessKind::kWrite, true);
  state_.recorder.add_sync(sync);
  if (!stores) add(op, 0, tensor, target, AccessKind::kRead, true);
  if (state_.recorder.agent().accesses.size() > known) state_.recorder.link_last_sync(known);
}

// Four payload bytes share a tag, so elements of one packet cannot be told apart.
void AccessExpander::widen_to_packets(const Op& op, LooseBox& box) const {
  const Tensor& tensor = state_.program.tensors[at(op.region->tensor)];
  auto per_packet =
      static_cast<std::int64_t>(4 / std::min<std::size_t>(4, size_bytes(tensor.dtype)));
  if (per_packet == 1) return;
  auto last = tensor.shape.size() - 1;
  if (bound_shape(state_.program, op.region->tensor)[last] % per_packet != 0) {
    state_.reject(op, fmt::format("rows of packet buffer '{}' must be whole packets of {} elements",
                                  tensor.name, per_packet));
  }
  std::int64_t lo = std::max(box.origin[last], box.limit.lo[last]);
  std::int64_t hi = std::min(box.origin[last] + box.size[last], box.limit.hi[last]);
  if (hi <= lo) return;
  lo = lo / per_packet * per_packet;
  box.limit.hi[last] = ceil_div(hi, per_packet) * per_packet;
  box.size[last] = box.limit.hi[last] - lo;
  box.origin[last] = lo;
}

}  // namespace stretto
