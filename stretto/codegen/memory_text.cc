// Loads, stores and copies of regions.
#include <fmt/ranges.h>

#include <algorithm>

#include "stretto/codegen/abort_text.h"
#include "stretto/codegen/agent_writer.h"
#include "stretto/ir/tables.h"

namespace stretto {
namespace {

bool reads(OpCode code) {
  return code == OpCode::kLoad || code == OpCode::kLoadRows || code == OpCode::kLoadPacket;
}

// How often operations name a register, as result or operand.
int names_of(const Block& block, int reg) {
  int names = 0;
  for (const Op& op : block) {
    names += (op.result == reg ? 1 : 0) +
             static_cast<int>(std::count(op.operands.begin(), op.operands.end(), reg));
    for (const Block& body : op.bodies) names += names_of(body, reg);
  }
  return names;
}

}  // namespace

std::string AgentWriter::coordinate(const Region& r, int dim) const {
  return dim < 0 ? "0" : expr(r.origin[static_cast<std::size_t>(dim)]);
}

std::string AgentWriter::base(const Region& r) const {
  return tensor_text(program_, r.tensor, r.rank.has_value() ? expr(r.rank) : "rank");
}

std::string AgentWriter::box(const Region& r, const std::string& element, bool picked) const {
  const Tensor& t = tensor(r);
  std::vector<std::int64_t> strides = row_major_strides(program_, r.tensor);
  std::string offset, inside;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    const Expr& at = r.origin[d];
    if (!at.is_const(0)) {
      offset += fmt::format(" + i64({}) * {}", expr(at), strides[d]);
    }
    bool in_tile = static_cast<int>(d) == r.row_dim || static_cast<int>(d) == r.col_dim;
    bool known = at.is_const() && t.shape[d].is_const() &&
                 at.const_value() < t.shape[d].const_value() && at.const_value() >= 0;
    if (in_tile || known) continue;
    inside += fmt::format(" && {} < {}", expr(at), expr(t.shape[d]));
    if (!never_negative(at)) inside += fmt::format(" && {} >= 0", expr(at));
  }
  auto limit = [&](int dim, std::int64_t count, const Expr& end, bool whole) {
    if (dim < 0) return fmt::format("{}", count);
    std::string at = expr(r.origin[static_cast<std::size_t>(dim)]);
    std::string stop = expr(t.shape[static_cast<std::size_t>(dim)]);
    if (end.has_value()) stop = fmt::format("min({}, {})", stop, expr(end));
    return whole ? fmt::format("{} - {}", stop, at)
                 : fmt::format("min({}, {} - {})", count, stop, at);
  };
  auto first = [&](int dim) -> std::string {
    if (dim < 0 || never_negative(r.origin[static_cast<std::size_t>(dim)])) return "0";
    const Expr& at = r.origin[static_cast<std::size_t>(dim)];
    if (at.is_const()) return fmt::format("{}", -at.const_value());
    return fmt::format("max(0, -{})", expr(at));
  };
  std::string rows = limit(r.row_dim, r.rows, r.row_end, picked),
              cols = limit(r.col_dim, r.cols, r.col_end, false), first_row = first(r.row_dim),
              first_col = first(r.col_dim);
  std::int64_t row_stride = r.row_dim < 0 ? 0 : strides[static_cast<std::size_t>(r.row_dim)];
  std::int64_t col_stride = strides[static_cast<std::size_t>(r.col_dim)];
  int cluster = site_.role == nullptr ? 1 : site_.role->resource.cluster_size;
  if (cluster > 1 && r.rows > 1 && !picked) {
    std::int64_t share = r.rows / cluster;
    offset += fmt::format(" + i64(cta * {}) * {}", share, row_stride);
    rows = fmt::format("min({}, {} - cta * {})", share, rows, share);
    if (first_row != "0") first_row += fmt::format(" - cta * {}", share);
  }
  if (!inside.empty()) rows = fmt::format("({}) ? {} : 0", inside.substr(4), rows);
  std::string ends = fmt::format("{}, {}", rows, cols);
  if (first_row != "0" || first_col != "0") ends += fmt::format(", {}, {}", first_row, first_col);
  if (t.packet) {  // words of 4 payload bytes
    auto per = static_cast<std::int64_t>(4 / size_bytes(t.dtype));
    if (row_stride % per != 0) {
      refuse(t.loc,
             fmt::format("packet buffer '{}' has rows of an odd number of elements", t.name));
    }
    return fmt::format("Box<u64>{{reinterpret_cast<u64*>({}) + (i64(0){}) / {}, {}, 1, {}}}",
                       base(r), offset, per, row_stride / per, ends);
  }
  return fmt::format("Box<{}>{{reinterpret_cast<{}*>({}){}, {}, {}, {}}}", element, element,
                     base(r), offset, row_stride, col_stride, ends);
}

// What comes before a store that others may see.
std::string AgentWriter::unless_lost(const Region& to) const {
  bool guarded = !kernel_.aborted.empty() && (of_another_rank(to) || is_made_table(tensor(to)));
  return guarded ? fmt::format("if (!has_aborted({})) ", kernel_.aborted) : "";
}

std::string AgentWriter::row_to(const Region& r, const std::string& row) const {
  bool guarded = !kernel_.aborted.empty() && of_another_rank(r);
  return guarded ? fmt::format("row_unless_aborted({}, {})", row, kernel_.aborted) : row;
}

// A loop counter is no less than where its loop begins.
bool AgentWriter::never_negative(const Expr& e) const {
  return stretto::never_negative(program_, e, agent_.body);
}

int AgentWriter::run_width(const Region& r, const ValuePlan& plan) const {
  std::vector<std::int64_t> strides = row_major_strides(program_, r.tensor);
  auto size = static_cast<std::int64_t>(size_bytes(tensor(r).dtype));
  auto slot_bytes =
      static_cast<std::int64_t>(storage_bytes(program_, r.tensor)) / tensor(r).num_slots;
  if (strides[static_cast<std::size_t>(r.col_dim)] != 1) return 1;
  std::int64_t width = std::min<std::int64_t>(plan.fragment ? 2 : plan.vec, 16 / size);
  auto divides = [&](std::int64_t w) {
    if (tensor(r).num_slots > 1 && slot_bytes % (w * size) != 0) return false;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      std::int64_t step = strides[d] * known_factor(r.origin[d], agent_.body);
      bool column = static_cast<int>(d) == r.col_dim;
      if (!column && strides[d] % w != 0) return false;
      if (column && step % w != 0) return false;
    }
    return true;
  };
  while (width > 1 && !divides(width)) width /= 2;
  return static_cast<int>(width);
}

bool AgentWriter::ends_between_runs(const Region& r, int run) const {
  auto whole = [&](const Expr& end) { return known_factor(end, agent_.body) % run == 0; };
  const auto col = static_cast<std::size_t>(r.col_dim);
  return run > 1 && r.cols % run == 0 && whole(tensor(r).shape[col]) &&
         never_negative(r.origin[col]) && (!r.col_end.has_value() || whole(r.col_end));
}

// A word holds 4 bytes of payload, and two of them are 16 bytes; slots follow each other without a
// gap.
std::string AgentWriter::packet_form(const Region& r, const ValuePlan& plan) const {
  std::string element = element_text(tensor(r).dtype);
  if (kernel_.lines[static_cast<std::size_t>(r.tensor)]) return fmt::format("Lines<{}>", element);
  auto per = static_cast<int>(4 / size_bytes(tensor(r).dtype));
  std::size_t slot_bytes =
      storage_bytes(program_, r.tensor) / static_cast<std::size_t>(tensor(r).num_slots);
  bool pairs = plan.vec >= 2 * per && r.cols >= 2 * per && run_width(r, plan) >= 2 * per;
  return fmt::format("Words<{}, {}>", element, slot_bytes % 16 == 0 && pairs ? 2 : 1);
}

std::string AgentWriter::map_text(const Region& r, TensorMapPlan view) {
  std::vector<TensorMapPlan>& maps = kernel_.launch.maps;
  auto at = std::find(maps.begin(), maps.end(), view);
  auto idx = at - maps.begin();
  if (at == maps.end()) {
    int count = view.rank < 0 ? 1 : program_.world_size;
    for (int i = 0; i < count; ++i) {
      maps.push_back(view);
      if (view.rank >= 0) ++view.rank;
    }
  }
  return view.rank < 0 ? fmt::format("&p.maps[{}]", idx)
                       : fmt::format("&p.maps[{} + {}]", idx, expr(r.rank));
}

std::string AgentWriter::outer_coordinate(const Region& r, const TensorMapPlan& view) const {
  std::string z = coordinate(r, view.outer_dim);
  int slots = tensor(r).num_slots;
  if (slots == 1) return z;
  if (view.outer_dim < 0) return fmt::format("int(epoch % {})", slots);
  const Expr& count = tensor(r).shape[static_cast<std::size_t>(view.outer_dim)];
  return fmt::format("int(epoch % {}) * {} + {}", slots, count.const_value(), z);
}

// The condition for a store not to end up in the next slot, whose planes follow those of this one
// in the view; "" where it holds.
std::string AgentWriter::within_slot(const Region& r, const TensorMapPlan& view) const {
  const Tensor& t = tensor(r);
  if (t.num_slots == 1 || view.outer_dim < 0) return "";
  const Expr& at = r.origin[static_cast<std::size_t>(view.outer_dim)];
  const Expr& count = t.shape[static_cast<std::size_t>(view.outer_dim)];
  std::int64_t planes = count.const_value();
  bool known = (at.is_const() && at.const_value() < planes) ||
               (at.same(Expr::var(0)) && planes >= program_.world_size);
  return known ? "" : fmt::format("{} < {}", expr(at), planes);
}

void AgentWriter::memory(const Op& op) {
  const Region& r = *op.region;
  std::string element = element_text(tensor(r).dtype);
  bool picked = op.code == OpCode::kLoadRows || op.code == OpCode::kStoreRows;
  std::string from =
      box(r, reads(op.code) || op.code == OpCode::kCopy ? "const " + element : element, picked);
  if (!reads(op.code)) settle_copies();
  switch (op.code) {
    case OpCode::kLoad: {
      int run = run_width(r, value_plan(op.result));
      line("load_box<L{}, {}{}>(v{}, {}, team);", op.result, run,
           ends_between_runs(r, run) ? ", true" : "", op.result, from);
      return;
    }
    case OpCode::kLoadRows:
      line("load_rows<L{}, {}>(v{}, v{}, {}, team);", op.result,
           run_width(r, value_plan(op.result)), op.result, op.operands[0], from);
      return;
    case OpCode::kStore:
      return store(op);
    case OpCode::kStoreRows:
      line("{}store_rows<L{}>(v{}, v{}, {}, team);", unless_lost(r), op.operands[0], op.operands[0],
           op.operands[1], from);
      return;
    case OpCode::kCopy: {
      std::string to = box(*op.region2, element);
      ValuePlan wide{.vec = 8};
      int width = std::min(run_width(r, wide), run_width(*op.region2, wide));
      // A thread has 64 registers or little more, which eight loads with their places do not fit.
      const char* batch = kernel_.launch.block > 768 ? ", 4" : "";
      line("{}copy_box<{}{}>({}, {}, team, {});", unless_lost(*op.region2), width, batch, to, from,
           values_.num_threads);
      return;
    }
    case OpCode::kStorePacket:
      delay_text({});
      line("{}store_packets<L{}, {}>(v{}, {}, u32(epoch + 1), team);", unless_lost(r),
           op.operands[0], packet_form(r, value_plan(op.operands[0])), op.operands[0], from);
      return;
    case OpCode::kLoadPacket:
      delay_text({});
      return take_packets(op, fmt::format("load_packets<{}>(v{}, {}, ", packet_types(op), op.result,
                                          packet_source(op)));
    default:
      refuse(op.loc,
             "reduce_store adds in the order of arrival, which gives other bits at every launch");
  }
}

std::string AgentWriter::packet_types(const Op& op) const {
  const Region& r = *op.region;
  if (r.cols * static_cast<std::int64_t>(size_bytes(tensor(r).dtype)) < 4) {
    refuse(op.loc, "a packet has 4 bytes, a column of the tile fewer");
  }
  return fmt::format("L{}, {}", op.result, packet_form(r, value_plan(op.result)));
}

std::string AgentWriter::packet_source(const Op& op) const {
  return box(*op.region, fmt::format("const {}", element_text(tensor(*op.region).dtype))) +
         ", u32(epoch + 1), team";
}

// `call`: of whoever waits for them, up to the watch.
void AgentWriter::take_packets(const Op& op, const std::string& call) {
  if (records()) line("{{");
  timer_text("wait_ns");
  line("{}p.watch, {}{});", call, sync_site(op), tells_of_abort() ? ", " + kernel_.aborted : "");
  if (records()) line("if (team.tid == 0) record_wait(lanes[{}], -1, wait_ns);", site_.lane);
  if (records()) line("}}");
}

// Words of packets that a thread has under way, twice as many registers.
std::int64_t AgentWriter::words_under_way() const { return kernel_.launch.block > 768 ? 16 : 32; }

// Where loads of packets follow each other from `at` on, with nothing but names of indices between
// them: the end of the last that can be under way together; else `at`.
std::size_t AgentWriter::end_of_packets(const Block& ops, std::size_t at) const {
  if (issuing_ || ahead_ || ops[at].code != OpCode::kLoadPacket) return at;
  constexpr std::int64_t kLeastWords = 3;  // of one load
  std::size_t end = at + 1;
  std::int64_t count = 1;
  for (std::size_t i = at + 1; i < ops.size() && (count + 1) * kLeastWords <= words_under_way();
       ++i) {
    bool loads = ops[i].code == OpCode::kLoadPacket;
    if (!loads && ops[i].code != OpCode::kLet) break;
    if (loads) end = i + 1;
    count += loads ? 1 : 0;
  }
  return end;
}

// All are asked for before the first is waited for.
void AgentWriter::packets_together(const Block& ops, std::size_t begin, std::size_t end) {
  auto loads = [&](auto&& of_load) {
    for (std::size_t i = begin; i < end; ++i) {
      if (ops[i].code == OpCode::kLoadPacket) at_line_of(ops[i], [&] { of_load(ops[i]); });
    }
  };
  std::int64_t count = 0;
  loads([&](const Op&) { ++count; });
  const std::int64_t at_once = std::max<std::int64_t>(words_under_way() / count / 2 * 2, 2);
  line("// all of these are under way before the first is waited for");
  for (std::size_t i = begin; i < end; ++i) {
    const Op& op = ops[i];
    if (op.code == OpCode::kLet) {
      emit(op);
      continue;
    }
    at_line_of(op, [&] {
      delay_text({});
      line("PacketLoads<{}, decltype(v{}), {}> come{}({});", packet_types(op), op.result, at_once,
           op.result, packet_source(op));
    });
  }
  loads([&](const Op& op) {
    take_packets(op, fmt::format("come{}.take(v{}, ", op.result, op.result));
  });
}

// A load whose value, widened, is combined with another and read by nobody else: c = f(a, x). Then
// no register holds it for longer than the element takes.
bool AgentWriter::loads_into_binary(const Block& ops, std::size_t load) const {
  if (load + 2 >= ops.size()) return false;
  const Op &from = ops[load], &cast = ops[load + 1], &binary = ops[load + 2];
  if (from.code != OpCode::kLoad || cast.code != OpCode::kCast || binary.code != OpCode::kBinary ||
      cast.operands[0] != from.result || binary.operands[1] != cast.result ||
      binary.operands[0] == cast.result) {
    return false;
  }
  auto same = [&](int reg) {
    const ValueType &a = type(reg), &b = type(from.result);
    return a.dtype == DType::kF32 && a.rows == b.rows && a.cols == b.cols;
  };
  bool fits = same(binary.result) && same(binary.operands[0]) && type(from.result).rows > 1 &&
              type(from.result).cols > 1;
  return fits && names_of(agent_.body, from.result) == 2 && names_of(agent_.body, cast.result) == 2;
}

void AgentWriter::load_into_binary(const Op& load, const Op& binary) {
  const Region& r = *load.region;
  std::string from = box(r, std::string("const ") + element_text(tensor(r).dtype));
  line("load_into<L{}, {}, {}>(v{}, v{}, {}, team, {}());", load.result,
       run_width(r, value_plan(load.result)), quads_in_flight(load), binary.result,
       binary.operands[0], from, functor(binary.binary));
}

// None where the assembler would spill (CUDA 13.1): beside a tile that fills half of a thread's
// registers, unless another agent stores it.
int AgentWriter::quads_in_flight(const Op& load) const {
  constexpr std::int64_t kMostBeside = 96;
  constexpr int kMany = 16;
  const ValueType& v = type(load.result);
  bool has_epilogue = site_.role != nullptr && site_.role->resource.store_slots > 0;
  return has_epilogue || v.rows * v.cols <= kMostBeside * values_.num_threads ? kMany : 0;
}

void AgentWriter::store(const Op& op) {
  const Region& r = *op.region;
  int reg = op.operands[0];
  if (stores_alone()) return epilogue_store(op, plan_.epilogue_stores.at(&op));
  const int run = run_width(r, value_plan(reg));
  const bool apart = r.rank.has_value();
  const char* how = apart ? ", true" : "";
  if (ends_between_runs(r, run)) how = apart ? ", true, true" : ", false, true";
  std::string plain = fmt::format("{}store_box<L{}, {}{}>(v{}, {}, team);", unless_lost(r), reg,
                                  run, how, reg, box(r, element_text(tensor(r).dtype)));
  TensorMapPlan view;
  if (!stores_by_tma(op, view)) return line("{}", plain);
  // TMA knows the end of the tensor only, and no store may begin before it (CUDA C++ Programming
  // Guide, section on tensor memory access): an illegal instruction, where a load reads zeros.
  std::vector<std::string> terms;
  if (r.row_end.has_value()) {
    terms.push_back(
        fmt::format("{} - {} >= {}", expr(r.row_end), coordinate(r, r.row_dim), r.rows));
  }
  for (const Expr& at : r.origin) {
    if (!never_negative(at)) terms.push_back(fmt::format("{} >= 0", expr(at)));
  }
  if (std::string end = within_slot(r, view); !end.empty()) terms.push_back(end);
  if (terms.empty()) return store_tma(op, view);
  line("if ({}) {{", fmt::join(terms, " && "));
  ++depth_;
  store_tma(op, view);
  --depth_;
  line("}} else {{");
  ++depth_;
  line("{}", plain);
  --depth_;
  line("}}");
}

bool AgentWriter::stores_by_tma(const Op& op, TensorMapPlan& view) const {
  const Region& r = *op.region;
  int reg = op.operands[0];
  std::int64_t rows = values_.rows_here(type(reg));
  // Columns that are stored twice would cross the link twice, too.
  bool overlaps = !r.rank.has_value() && r.cols % 8 == 0 && r.cols > kStoreBlock;
  bool whole_blocks = rows % (values_.num_threads / 2) == 0 && (r.cols % 16 == 0 || overlaps);
  bool row_limit =
      r.row_end.has_value() && (r.row_dim < 0 || site_.role->resource.cluster_size > 1);
  if (!value_plan(reg).fragment || size_bytes(tensor(r).dtype) != 2 || !whole_blocks || row_limit ||
      r.col_end.has_value() || plan_.store_stages == 0 ||
      !tensor_map_of(program_, r, agent_.body, view)) {
    return false;
  }
  view.box_rows = kStoreBlock;
  bool widest = r.cols % kStoreBlock == 0 || overlaps;
  view.box_cols = widest ? kStoreBlock : r.cols % 32 == 0 ? 32 : 16;
  view.swizzle_bytes = static_cast<int>(2 * view.box_cols);
  return true;
}

void AgentWriter::store_tma(const Op& op, const TensorMapPlan& view) {
  const Region& r = *op.region;
  int reg = op.operands[0];
  std::string element = element_text(tensor(r).dtype), value = fmt::format("v{}", reg);
  line("{{");
  ++depth_;
  if (type(reg).dtype != tensor(r).dtype) {
    line("Tile<{}, {}, {}> packed;", element, values_.row_slots(type(reg), value_plan(reg)),
         values_.col_slots(type(reg), value_plan(reg)));
    line("assign(packed, v{});", reg);
    value = "packed";
  }
  std::string y = coordinate(r, view.row_dim);
  if (site_.role->resource.cluster_size > 1) {
    y += fmt::format(" + cta * {}", values_.rows_here(type(reg)));
  }
  // Stages are counted from the role's first warpgroup on, which in another role's blocks is not
  // the first.
  int first = plan_.first_warpgroup;
  std::string warpgroup =
      first == 0 ? "threadIdx.x / 128" : fmt::format("(threadIdx.x / 128 - {})", first);
  std::string stages = fmt::format("smem + {} + {} * {}", plan_.store_stages, warpgroup,
                                   plan_.store_buffers * kStoreBlock * kStoreBlock * 2);
  int own = plan_.first_thread[agent_idx()] / 128;
  if (store_barrier_ == 0) store_barrier_ = claim_warpgroups(kStoreBarrier + own, kStores);
  std::string buffers = plan_.store_buffers == 2 ? "" : ", 1";
  line("store_tma<{}, {}, {}{}>({}, {}, {}, {}, {}, {}, team, {} + threadIdx.x / 128);", element,
       r.cols, view.box_cols, buffers, map_text(r, view), stages, value, coordinate(r, r.col_dim),
       row_to(r, y), outer_coordinate(r, view), store_barrier_ - own);
  --depth_;
  line("}}");
}

}  // namespace stretto
