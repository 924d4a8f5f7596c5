// Operations that touch memory. A region is clipped to the tensor once; what lies outside reads as
// zero, is not written, and contributes nothing to a dot.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/executor/kernels/dot.h"
#include "stretto/executor/machine.h"
#include "stretto/executor/register_tile.h"

namespace stretto {
namespace {

// Elements [r0, r1) x [c0, c1) of a register's tile.
TileRef valid_part(const Register& reg, const ClippedTile& t) {
  return sub_tile(tile_of(reg), t.r0, t.c0, t.num_rows(), t.num_cols());
}

// Ranks may add to the same element at the same time.
template <typename Bits>
void atomic_add(DType dtype, std::byte* at, double value) {
  std::atomic_ref<Bits> element(*reinterpret_cast<Bits*>(at));
  Bits before = element.load(std::memory_order_relaxed), after;
  do {
    store_element(dtype, &after, load_element(dtype, &before) + value);
  } while (!element.compare_exchange_weak(before, after, std::memory_order_relaxed));
}

void atomic_add(DType dtype, std::byte* at, double value) {
  switch (size_bytes(dtype)) {
    case 1:
      return atomic_add<std::uint8_t>(dtype, at, value);
    case 2:
      return atomic_add<std::uint16_t>(dtype, at, value);
    case 4:
      return atomic_add<std::uint32_t>(dtype, at, value);
    default:
      return atomic_add<std::uint64_t>(dtype, at, value);
  }
}

// A factor of a dot: its valid rows and columns [lo, hi), the rest being zero.
struct Factor {
  TileRef tile;  // the valid part
  std::int64_t r0, r1, c0, c1;
};

Factor flipped(const Factor& f) { return {stretto::transposed(f.tile), f.c0, f.c1, f.r0, f.r1}; }

// Of the source what the destination has room for.
ClippedTile common_part(ClippedTile from, const ClippedTile& to) {
  auto cut = [&](std::int64_t& low, std::int64_t& high, int dim, std::int64_t to_low,
                 std::int64_t to_high) {
    std::int64_t begin = std::max(low, to_low), end = std::max(begin, std::min(high, to_high));
    if (dim >= 0) from.origin[dim] += begin - low;
    low = begin;
    high = end;
  };
  cut(from.r0, from.r1, from.row_dim, to.r0, to.r1);
  cut(from.c0, from.c1, from.col_dim, to.c0, to.c1);
  return from;
}

}  // namespace

void RankMachine::execute_memory(AgentState& a, const Inst& inst) {
  switch (inst.code) {
    case OpCode::kLoad:
      return load(inst, a, writable(result(a, inst)));
    case OpCode::kLoadRows:
      return load_rows(inst, a, writable(result(a, inst)));
    case OpCode::kStore:
      return store(a, inst);
    case OpCode::kStoreRows:
      return store_rows(a, inst);
    case OpCode::kReduceStore:
      return reduce_store(a, inst);
    case OpCode::kCopy:
      return copy(a, inst);
    case OpCode::kStorePacket:
      return store_packet(a, inst);
    default:
      return dot(a, inst);
  }
}

void RankMachine::load(const Inst& inst, AgentState& a, Register& reg) {
  ClippedTile t = clip(a, inst, inst.region);
  observe(a, inst, AccessKind::kRead, t);
  if (!compute) return;
  if (t.rank == rank()) check_contract_of_tile(t.tensor_idx);
  bool partial = t.num_rows() < t.rows || t.num_cols() < t.cols;
  if (partial) zero_tile(tile_of(reg));
  if (!t.empty()) copy_tile(valid_part(reg, t), memory_tile(t));
}

void RankMachine::store(AgentState& a, const Inst& inst) {
  ClippedTile t = clip(a, inst, inst.region);
  observe(a, inst, AccessKind::kWrite, t);
  if (!compute || t.empty()) return;
  const Register& reg = a.regs[static_cast<std::size_t>(inst.operands[0])];
  copy_tile(memory_tile(t), valid_part(reg, t));
}

// Row `i` of the tile, or an empty tile where the index or the region's limits mask it.
ClippedTile RankMachine::gathered_row(const Inst& inst, const ClippedTile& t, std::int32_t picked,
                                      std::int64_t i) const {
  ClippedTile row = t;
  row.rows = 1;
  row.r0 = 0;
  row.r1 = 0;
  if (picked < 0 || t.outside) return row;
  std::int64_t at = t.row_origin + picked;
  if (at >= t.tensor->shape[t.row_dim]) {
    throw UserError(fmt::format("{}:{}: tensor '{}' has {} rows, entry {} of the row indices is {}",
                                inst.op->loc.file, inst.op->loc.line,
                                program().tensors[static_cast<std::size_t>(t.tensor_idx)].name,
                                t.tensor->shape[t.row_dim], i, picked));
  }
  if (at < 0 || at >= t.row_limit) return row;
  row.r1 = 1;
  row.element += (at - t.origin[t.row_dim]) * t.row_stride;
  row.origin[t.row_dim] = at;
  std::byte* base = t.tensor->at[static_cast<std::size_t>(t.rank)];
  if (base != nullptr) row.data = base + row.element * t.tensor->elem_bytes;
  return row;
}

// Without arithmetic the indices are unknown, and the accesses they choose are not simulated.
void RankMachine::load_rows(const Inst& inst, AgentState& a, Register& reg) {
  if (!compute) return;
  ClippedTile t = clip(a, inst, inst.region);
  if (t.rank == rank()) check_contract_of_tile(t.tensor_idx);
  const auto* picked = a.regs[static_cast<std::size_t>(inst.operands[0])].as<std::int32_t>();
  TileRef whole = tile_of(reg);
  for (std::int64_t i = 0; i < t.rows; ++i) {
    ClippedTile row = gathered_row(inst, t, picked[i], i);
    observe(a, inst, AccessKind::kRead, row);
    if (row.num_cols() < row.cols || row.empty()) zero_tile(sub_tile(whole, i, 0, 1, whole.cols));
    if (!row.empty()) {
      copy_tile(sub_tile(whole, i, row.c0, 1, row.num_cols()), memory_tile(row));
    }
  }
}

void RankMachine::store_rows(AgentState& a, const Inst& inst) {
  if (!compute) return;
  ClippedTile t = clip(a, inst, inst.region);
  TileRef whole = tile_of(a.regs[static_cast<std::size_t>(inst.operands[0])]);
  const auto* picked = a.regs[static_cast<std::size_t>(inst.operands[1])].as<std::int32_t>();
  for (std::int64_t i = 0; i < t.rows; ++i) {
    ClippedTile row = gathered_row(inst, t, picked[i], i);
    observe(a, inst, AccessKind::kWrite, row);
    if (!row.empty()) {
      copy_tile(memory_tile(row), sub_tile(whole, i, row.c0, 1, row.num_cols()));
    }
  }
}

void RankMachine::reduce_store(AgentState& a, const Inst& inst) {
  ClippedTile t = clip(a, inst, inst.region);
  observe(a, inst, AccessKind::kReduce, t);
  if (!compute || t.empty()) return;
  TileRef value = valid_part(a.regs[static_cast<std::size_t>(inst.operands[0])], t);
  for (std::int64_t r = 0; r < t.num_rows(); ++r) {
    for (std::int64_t c = 0; c < t.num_cols(); ++c) {
      std::byte* to = t.data + (r * t.row_stride + c * t.col_stride) * t.tensor->elem_bytes;
      const std::byte* from = static_cast<std::byte*>(sub_tile(value, r, c, 1, 1).data);
      atomic_add(t.tensor->dtype, to, load_element(value.dtype, from));
    }
  }
}

void RankMachine::copy(AgentState& a, const Inst& inst) {
  ClippedTile from = clip(a, inst, inst.region), to = clip(a, inst, inst.region2);
  observe(a, inst, AccessKind::kRead, common_part(from, to));
  observe(a, inst, AccessKind::kWrite, to);
  if (!compute || to.empty()) return;
  std::int64_t begin_ns = recorder != nullptr ? Recorder::now_ns() : 0;
  // The part that both have, in tile coordinates; the rest of the destination reads masked source.
  std::int64_t r0 = std::max(from.r0, to.r0), r1 = std::min(from.r1, to.r1);
  std::int64_t c0 = std::max(from.c0, to.c0), c1 = std::min(from.c1, to.c1);
  bool none = r0 >= r1 || c0 >= c1;
  TileRef source = memory_tile(from), target = memory_tile(to);
  if (none || r0 > to.r0 || r1 < to.r1 || c0 > to.c0 || c1 < to.c1) zero_tile(target);
  if (!none) {
    copy_tile(sub_tile(target, r0 - to.r0, c0 - to.c0, r1 - r0, c1 - c0),
              sub_tile(source, r0 - from.r0, c0 - from.c0, r1 - r0, c1 - c0));
  }
  if (recorder == nullptr) return;
  recorder->add(Span{.kind = SpanKind::kCopy,
                     .rank = rank(),
                     .worker = a.worker,
                     .program = program_name,
                     .role = role_name(a),
                     .tile = a.tile,
                     .epoch = static_cast<std::int64_t>(epoch_),
                     .begin_ns = begin_ns,
                     .end_ns = Recorder::now_ns()});
}

bool RankMachine::pipe_put(AgentState& a, const Inst& inst) {
  PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
  if (!a.shared->takes(inst.symbol)) return park(a, Park::kPipeFull);
  a.park = Park::kNone;
  Register& slot = pipe.slots[pipe.put++ % pipe.slots.size()];
  a.shared->note_put(inst.symbol);
  if (observer != nullptr) observer->on_worker_edge(a, false, &slot);
  if (inst.op->operands.empty()) {
    load(inst, a, slot);
  } else {
    load_rows(inst, a, slot);
  }
  if (observer != nullptr) observer->on_worker_edge(a, true, &slot);
  return true;
}

bool RankMachine::pipe_fill(AgentState& a, const Inst& inst) {
  PipeState& pipe = a.shared->pipes[static_cast<std::size_t>(inst.symbol)];
  if (!a.shared->takes(inst.symbol)) return park(a, Park::kPipeFull);
  a.park = Park::kNone;
  Register& slot = pipe.slots[pipe.put++ % pipe.slots.size()];
  a.shared->note_put(inst.symbol);
  if (observer != nullptr) observer->on_worker_edge(a, false, &slot);
  if (compute) {
    TileRef value = tile_of(a.regs[static_cast<std::size_t>(inst.operands[0])]);
    copy_tile(tile_of(slot), sub_tile(value, 0, expr(a, inst, 0), slot.rows, slot.cols));
  }
  if (observer != nullptr) observer->on_worker_edge(a, true, &slot);
  return true;
}

void RankMachine::dot(AgentState& a, const Inst& inst) {
  const DotCode& code = a.code->dots[static_cast<std::size_t>(inst.dot)];
  std::int64_t turns = 1;
  if (code.folded) {
    std::int64_t begin = expr(a, inst, 0);
    a.vars[static_cast<std::size_t>(inst.var)] = begin;
    turns = std::max<std::int64_t>(expr(a, inst, 1) - begin, 0);
  }
  auto factor = [&](const DotSource& source, bool k_is_rows) {
    if (source.reg >= 0) {
      TileRef tile = tile_of(a.regs[static_cast<std::size_t>(source.reg)]);
      return Factor{tile, 0, tile.rows, 0, tile.cols};
    }
    const RegionCode& region = a.code->regions[static_cast<std::size_t>(source.region)];
    bool k_along_rows = k_is_rows != source.transposed;
    ClippedTile t = clip(a, inst, region, region.rows * (k_along_rows ? turns : 1),
                         region.cols * (k_along_rows ? 1 : turns));
    observe(a, inst, AccessKind::kRead, t);
    Factor f{memory_tile(t), t.r0, t.r1, t.c0, t.c1};
    return source.transposed ? flipped(f) : f;
  };
  Factor left = factor(code.a, false), right = factor(code.b, true);
  if (!compute) return;
  if (!code.folded && inst.num_exprs > 0) {
    left.r1 = std::min(left.r1, std::max(expr(a, inst, 0), left.r0));
  }
  // Where either factor is masked the product adds nothing.
  std::int64_t k0 = std::max(left.c0, right.r0), k1 = std::min(left.c1, right.r1);
  std::int64_t m = left.r1 - left.r0, n = right.c1 - right.c0;
  bool none = k0 >= k1 || m <= 0 || n <= 0;
  bool scaled = code.scale_a >= 0;
  Register& out = writable(a.regs[static_cast<std::size_t>(code.result)]);
  TileRef whole = tile_of(out);
  bool partial = none || m < out.rows || n < out.cols;
  if (scaled) {
    Register product = out;
    product.data = a.arena.get();
    whole = tile_of(product);
  } else if (!code.zero_acc && code.result != code.acc) {
    copy_tile(whole, tile_of(a.regs[static_cast<std::size_t>(code.acc)]));
  }
  bool overwrite = scaled || code.zero_acc;
  if (overwrite && partial) zero_tile(whole);
  if (!none) {
    kernels::dot({.acc = sub_tile(whole, left.r0, right.c0, m, n),
                  .a = sub_tile(left.tile, 0, k0 - left.c0, m, k1 - k0),
                  .b = sub_tile(right.tile, k0 - right.r0, 0, k1 - k0, n),
                  .accumulate = !overwrite,
                  .tile_rows = out.rows});
  }
  if (scaled) add_scaled(a, code, whole);
  std::int64_t width = left.c1 - left.c0;
  if (code.sums_from < 0 || m <= 0 || width <= 0) return;
  static const float one = 1;
  kernels::dot({.acc = sub_tile(whole, left.r0, code.sums_from, m, kSumColumns),
                .a = left.tile,
                .b = {DType::kF32, width, kSumColumns, &one, 0, 0},
                .accumulate = true,
                .tile_rows = out.rows});
}

// out = acc + product * scale_a * scale_b, rows scaled by one and columns by the other.
void RankMachine::add_scaled(AgentState& a, const DotCode& code, const TileRef& product) {
  Register& out = a.regs[static_cast<std::size_t>(code.result)];
  const auto* row_scale = a.regs[static_cast<std::size_t>(code.scale_a)].as<float>();
  const auto* col_scale = a.regs[static_cast<std::size_t>(code.scale_b)].as<float>();
  const auto* acc =
      code.zero_acc ? nullptr : a.regs[static_cast<std::size_t>(code.acc)].as<float>();
  const auto* p = static_cast<const float*>(product.data);
  auto* to = out.as<float>();
  for (std::int64_t r = 0; r < out.rows; ++r) {
    for (std::int64_t c = 0; c < out.cols; ++c) {
      std::int64_t i = r * out.cols + c;
      to[i] = (acc == nullptr ? 0.0f : acc[i]) + p[i] * row_scale[r] * col_scale[c];
    }
  }
}

}  // namespace stretto
