#include "stretto/predict/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stretto/base/at.h"
#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/ir/value_plan.h"
#include "stretto/proof/loop_fold.h"

namespace stretto::predict {
namespace {

// Iterations looked at in a loop whose iterations differ.
constexpr std::int64_t kMaxSamples = 32;
constexpr std::int64_t kMaxTrips = std::int64_t{1} << 40;

constexpr std::int64_t kRunBytes = 16;         // that a thread stores at a time
constexpr double kStoredTile = 128.0 * 256.0;  // Machine::tile_cost is for a tile of this size

// The part of a load's latency that a guarded one takes where no products load: what is there is in
// the L2 cache (docs/performance/prediction.md, 'Why the defaults are what they are').
constexpr double kGuardedLatency = 0.5;

double area(const ValueType& type) { return static_cast<double>(type.rows * type.cols); }

double threads_of(const Agent& agent) {
  constexpr int kThreads = 256;  // where the agent does not say
  return agent.num_threads > 0 ? agent.num_threads : kThreads;
}

void add_slots(std::vector<Slots>& slots, int pipe, double count) {
  for (Slots& s : slots) {
    if (s.pipe == pipe) {
      s.count += count;
      return;
    }
  }
  slots.push_back({pipe, count});
}

Box hull(const Box& a, const Box& b) {
  Box out;
  for (std::size_t d = 0; d < out.lo.size(); ++d) {
    out.lo[d] = std::min(a.lo[d], b.lo[d]);
    out.hi[d] = std::max(a.hi[d], b.hi[d]);
  }
  return out;
}

// The same reads one iteration later: they cover what lies between.
bool same_reads(const std::vector<Read>& a, const std::vector<Read>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](auto& x, auto& y) { return x.tensor == y.tensor; });
}

bool costs_nothing(const Block& block) {
  return std::all_of(block.begin(), block.end(), [](const Op& op) {
    return op.code == OpCode::kPipeRelease || op.code == OpCode::kAwait || op.code == OpCode::kLet;
  });
}

// Conditions that decide about work, and inner loops, may make iterations differ.
bool is_uniform(const Block& block) {
  return std::all_of(block.begin(), block.end(), [](const Op& op) {
    if (op.code == OpCode::kLoop) {
      return op.exprs[0].is_const() && op.exprs[1].is_const() && is_uniform(op.bodies[0]);
    }
    return op.code != OpCode::kWhen || (costs_nothing(op.bodies[0]) && costs_nothing(op.bodies[1]));
  });
}

// Bytes over those of the payload: of words half are tags; threads that move whole rows of 256
// bytes have lines instead, 576 bytes for 512 (docs/decisions/0019-packets-in-lines.md).
double packet_factor(const Region& region, const Tensor& tensor, const Agent& agent) {
  constexpr std::int64_t kLineBytes = 256;
  const Expr& width = tensor.shape.back();
  auto size = static_cast<std::int64_t>(size_bytes(tensor.dtype));
  bool lines = agent.kind == AgentKind::kBody && region.cols * size % kLineBytes == 0 &&
               width.is_const() && width.const_value() * size % kLineBytes == 0;
  return lines ? 576.0 / 512 : 2;
}

// Whether loads before and after it are not under way together; those around arithmetic are.
bool ends_loads(const Op& op) {
  switch (op.code) {
    case OpCode::kStore:
    case OpCode::kStoreRows:
    case OpCode::kReduceStore:
    case OpCode::kCopy:
    case OpCode::kPipePut:
    case OpCode::kPipeFill:
    case OpCode::kPipeGet:
    case OpCode::kLoop:
      return true;
    default:
      return false;
  }
}

// Rows are dealt out in runs to a power of two of threads, or to all. Where some get none, or a
// part of the rows belongs to others, loads are guarded: each is waited for before the next.
bool leaves_threads_idle(std::int64_t cols, double threads) {
  constexpr std::int64_t kRunCols = 8;
  std::int64_t runs = (cols + kRunCols - 1) / kRunCols, lanes = 1;
  while (lanes < runs) lanes *= 2;
  return runs % std::min(lanes, static_cast<std::int64_t>(threads)) != 0;
}

}  // namespace

void Frame::add(const Frame& other, double times) {
  cost.add(other.cost, times);
  if (!reads.empty() && same_reads(reads, other.reads)) {
    for (std::size_t i = 0; i < reads.size(); ++i) {
      reads[i].box = hull(reads[i].box, other.reads[i].box);
      reads[i].bytes += other.reads[i].bytes * times;
    }
  } else {
    for (const Read& r : other.reads) reads.push_back({r.tensor, r.box, r.bytes * times});
  }
  for (const Slots& s : other.puts) add_slots(puts, s.pipe, s.count * times);
  for (const Slots& s : other.gets) add_slots(gets, s.pipe, s.count * times);
  has_async_products |= other.has_async_products;
}

bool has_products(const Program& program) {
  return std::ranges::any_of(program.roles, [](const Role& role) {
    return std::ranges::any_of(role.agents,
                               [](const Agent& a) { return a.kind == AgentKind::kConsumer; });
  });
}

bool has_signals(const Block& block) {
  return std::any_of(block.begin(), block.end(), [](const Op& op) {
    switch (op.code) {
      case OpCode::kNotify:
      case OpCode::kWait:
      case OpCode::kStorePacket:
      case OpCode::kLoadPacket:
        return true;
      default:
        return std::any_of(op.bodies.begin(), op.bodies.end(), has_signals);
    }
  });
}

void FrameBuilder::start_agent(EvalScope& scope, int rank, const Agent& agent) {
  scope_ = &scope;
  rank_ = rank;
  agent_ = &agent;
}

Target FrameBuilder::resolve(const Region& region) const {
  const Tensor& tensor = program_->tensors[at(region.tensor)];
  const std::vector<std::int64_t>& shape = shapes_[at(region.tensor)];
  Target target{.rank = rank_};
  if (region.rank.has_value()) {
    target.rank = static_cast<int>(scope_->value(region.rank, "rank of a region"));
    if (target.rank < 0 || target.rank >= program_->world_size) {
      throw NoValue(fmt::format("'{}' of rank {} is touched, there are ranks 0 to {}", tensor.name,
                                target.rank, program_->world_size - 1));
    }
  }
  target.box.hi.fill(1);
  double elements = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    int dim = static_cast<int>(d);
    std::int64_t lo = scope_->value(region.origin[d], "place of a region");
    std::int64_t size = dim == region.row_dim   ? region.rows
                        : dim == region.col_dim ? region.cols
                                                : 1;
    std::int64_t hi = std::min(apply(ExprOp::kAdd, lo, size), shape[d]);
    if (dim == region.row_dim && region.row_end.has_value()) {
      hi = std::min(hi, scope_->value(region.row_end, "end of a region"));
    }
    if (dim == region.col_dim && region.col_end.has_value()) {
      hi = std::min(hi, scope_->value(region.col_end, "end of a region"));
    }
    target.box.lo[d] = std::max<std::int64_t>(lo, 0);
    target.box.hi[d] = std::max(hi, target.box.lo[d]);
    elements *= static_cast<double>(target.box.hi[d] - target.box.lo[d]);
  }
  target.bytes = elements * static_cast<double>(size_bytes(tensor.dtype));
  if (tensor.packet) target.bytes *= packet_factor(region, tensor, *agent_);
  return target;
}

double FrameBuilder::whole_bytes(const Region& region) const {
  const Tensor& tensor = program_->tensors[at(region.tensor)];
  auto bytes = static_cast<double>(region.rows * region.cols) *
               static_cast<double>(size_bytes(tensor.dtype));
  return tensor.packet ? bytes * packet_factor(region, tensor, *agent_) : bytes;
}

// Whether no tensor's or tile's edge lies within 16 bytes that a thread loads.
bool FrameBuilder::ends_between_runs(const Region& region) const {
  const Tensor& tensor = program_->tensors[at(region.tensor)];
  auto whole = [&](std::int64_t cols) {
    return cols * static_cast<std::int64_t>(size_bytes(tensor.dtype)) % kRunBytes == 0;
  };
  bool plain = !tensor.packet && region.col_dim >= 0 && !region.col_end.has_value();
  return plain && whole(region.cols) && whole(shapes_[at(region.tensor)][at(region.col_dim)]);
}

// Loads that follow each other are waited for together, as far as registers hold what comes.
void FrameBuilder::add_latency(bool remote, double bytes, Frame& frame) const {
  double rounds = bytes / (threads_of(*agent_) * machine_->thread_bytes);
  double waited = frame.loads == 0 ? 0 : std::max(frame.loads, 1.0);
  frame.loads += rounds;
  double more = std::max(frame.loads, 1.0) - waited;
  (remote ? frame.cost.remote_loads : frame.cost.num_loads) += more;
  if (remote && !frame.loads_remote && waited > 0 && more < 1) {  // what came before comes with it
    frame.cost.num_loads -= 1 - more;
    frame.cost.remote_loads += 1 - more;
  }
  frame.loads_remote |= remote;
}

// Each is waited for before the next, by all threads if any has one.
void FrameBuilder::add_guarded(bool remote, double rounds, Frame& frame) const {
  if (remote) {
    frame.cost.remote_loads += std::ceil(rounds);
  } else {
    frame.cost.num_loads += std::ceil(rounds) * (beside_products_ ? 1 : kGuardedLatency);
  }
}

double FrameBuilder::add_read(const Region& region, bool waits, Frame& frame) const {
  Target from = resolve(region);
  if (from.bytes == 0) return 0;
  bool remote = from.rank != rank_;
  if (waits) {  // threads that have rows have as many as if all had some
    double whole = std::max(whole_bytes(region), from.bytes);
    double threads = threads_of(*agent_);
    bool some_idle = from.bytes < whole || leaves_threads_idle(region.cols, threads);
    double round = threads * static_cast<double>(kRunBytes);
    // Sums beside products, whose time others decide, took no less since they are in flight.
    if (some_idle && (beside_products_ || !ends_between_runs(region))) {
      add_guarded(remote, whole / round, frame);
    } else {
      add_latency(remote, some_idle ? std::ceil(whole / round) * round : whole, frame);
    }
  }
  if (remote) {
    frame.cost.to(from.rank).read += from.bytes;
  } else {
    frame.cost.read += from.bytes;
    frame.reads.push_back({region.tensor, from.box, from.bytes});
  }
  return from.bytes;
}

void FrameBuilder::add_write(const Region& region, Frame& frame) const {
  Target to = resolve(region);
  if (agent_->kind == AgentKind::kConsumer) {
    frame.cost.num_stores += static_cast<double>(region.rows * region.cols) / kStoredTile;
  }
  if (to.rank == rank_) {
    frame.cost.written += to.bytes;
    return;
  }
  frame.cost.to(to.rank).written += to.bytes;
  if (program_->tensors[at(region.tensor)].packet) frame.cost.packets += to.bytes;
}

void FrameBuilder::copy(const Op& op, Frame& frame) const {
  Target from = resolve(*op.region), to = resolve(*op.region2);
  double bytes = std::min(from.bytes, to.bytes);  // the source is masked like the destination
  if (bytes == 0) return;
  frame.cost.num_copies += 1;
  if (from.rank != rank_) {
    frame.cost.to(from.rank).read += bytes;
  } else {
    frame.cost.read += bytes;
    frame.reads.push_back({op.region->tensor, from.box, bytes});
  }
  if (to.rank != rank_) {
    frame.cost.to(to.rank).written += bytes;
  } else {
    frame.cost.written += bytes;
  }
}

const FrameBuilder::LoopFacts& FrameBuilder::facts(const Op& loop) {
  auto [entry, added] = facts_.try_emplace(&loop);
  if (added) entry->second.is_uniform = predict::is_uniform(loop.bodies[0]);
  return entry->second;
}

Frame FrameBuilder::iteration(const Op& loop, std::int64_t value) {
  scope_->set(loop.var, value);
  Frame once;
  for (const Op& op : loop.bodies[0]) add(op, once);
  if (once.moves_pipes()) {
    once.cost.num_steps += static_cast<double>(slots_of_iteration(loop.bodies[0]));
  }
  return once;
}

void FrameBuilder::fold(const Op& loop, Frame& frame) {
  std::int64_t begin = scope_->value(loop.exprs[0], "begin of a loop");
  std::int64_t end = scope_->value(loop.exprs[1], "end of a loop");
  if (end <= begin) return;
  std::int64_t trips = apply(ExprOp::kSub, end, begin);
  if (trips > kMaxTrips) throw NoValue(fmt::format("a loop of {} iterations", trips));
  if (!facts(loop).is_uniform) return fold_samples(loop, {begin, end}, frame);
  Frame sum;
  sum.add(iteration(loop, begin), static_cast<double>(std::max<std::int64_t>(trips - 1, 1)));
  if (trips > 1) sum.add(iteration(loop, end - 1), 1);
  frame.add(sum, 1);
}

// Each of some iterations, the first and the last among them, counts for those around it; where one
// has work and the next has none, or the other way, up to where that changes. Agents who pass slots
// to each other find the same places, since they look for those.
void FrameBuilder::fold_samples(const Op& loop, Trips range, Frame& frame) {
  const std::int64_t trips = range.end - range.begin, samples = std::min(trips, kMaxSamples);
  std::vector<std::int64_t> places;
  std::vector<Frame> seen;
  for (std::int64_t s = 0; s < samples; ++s) {
    places.push_back(range.begin + (samples == 1 ? 0 : s * (trips - 1) / (samples - 1)));
    seen.push_back(iteration(loop, places.back()));
  }
  bool by_slots = std::ranges::any_of(seen, &Frame::moves_pipes);
  auto works = [&](const Frame& f) { return by_slots ? f.moves_pipes() : !f.cost.is_zero(); };
  Frame sum;
  std::int64_t counted = range.begin;
  for (std::size_t s = 0; s < seen.size(); ++s) {
    std::int64_t upto = range.begin + static_cast<std::int64_t>(s + 1) * trips / samples;
    if (s + 1 < seen.size() && works(seen[s]) != works(seen[s + 1])) {
      std::int64_t last = places[s];  // that is as this one
      for (upto = places[s + 1]; upto - last > 1;) {
        std::int64_t middle = last + (upto - last) / 2;
        (works(iteration(loop, middle)) == works(seen[s]) ? last : upto) = middle;
      }
    }
    sum.add(seen[s], static_cast<double>(upto - counted));
    counted = upto;
  }
  frame.add(sum, 1);
}

// Of a product's columns the tensor core leaves out whole parts.
void FrameBuilder::add_compute(const Op& op, Frame& frame) const {
  Cost cost;
  add_arithmetic(op, agent_->values, *machine_, cost);
  if (const int parts = column_parts(*agent_, op); parts > 1) {
    const std::int64_t cols = agent_->values[at(op.operands[2])].cols / parts;
    const std::int64_t named = scope_->value(op.exprs[1], "columns of a product");
    const auto used = std::clamp<std::int64_t>(ceil_div(named, cols), 1, parts);
    cost.tensor *= static_cast<double>(used) / parts;
  }
  frame.cost.add(cost, 1);
}

void FrameBuilder::add(const Op& op, Frame& frame) {
  if (ends_loads(op)) {
    frame.loads = 0;
    frame.loads_remote = false;
  }
  switch (op.code) {
    case OpCode::kLet:
      return scope_->set(op.var, scope_->value(op.exprs[0], "value of a variable"));
    case OpCode::kLoad:
    case OpCode::kLoadRows:
      add_read(*op.region, true, frame);
      return;
    case OpCode::kStore:
    case OpCode::kStoreRows:
    case OpCode::kReduceStore:
      return add_write(*op.region, frame);
    case OpCode::kCopy:
      return copy(op, frame);
    case OpCode::kPipePut: {
      add_slots(frame.puts, op.symbol, 1);
      double bytes = add_read(*op.region, false, frame);
      if (!op.operands.empty()) frame.cost.picked += bytes;
      if (bytes > 0) frame.cost.outside += std::max(whole_bytes(*op.region) - bytes, 0.0);
      return;
    }
    case OpCode::kPipeFill:  // what a store costs who computes comes with the first columns
      if (op.exprs[0].is_const(0)) {
        frame.cost.num_stores += area(agent_->values[at(op.operands[0])]) / kStoredTile;
      }
      return add_slots(frame.puts, op.symbol, 1);
    case OpCode::kPipeGet:
      return add_slots(frame.gets, op.symbol, 1);
    case OpCode::kLoop:
      return fold(op, frame);
    case OpCode::kWhen: {
      bool taken = scope_->value(op.exprs[0], "a condition") != 0;
      for (const Op& inner : op.bodies[taken ? 0 : 1]) add(inner, frame);
      return;
    }
    default:
      frame.has_async_products |= op.code == OpCode::kDotAsync;
      return add_compute(op, frame);
  }
}

}  // namespace stretto::predict
