#include "stretto/ops/moe/ep_dispatch.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/placing.h"

namespace stretto {
namespace {

void check(const EpDesc& d, const DispatchConfig& c) {
  check_sizes("ep_dispatch", {{"m", d.m},
                              {"hidden", d.hidden},
                              {"num_experts", d.num_experts},
                              {"top_k", d.top_k},
                              {"world_size", d.world_size},
                              {"tile_rows", c.tile_rows},
                              {"count_rows", c.count_rows},
                              {"tile_slots", c.tile_slots},
                              {"num_workers", c.num_workers}});
  check_dtype("ep_dispatch", "dtype", d.dtype);
  check_split("ep_dispatch", split_of(d));
  if (d.rows_per_rank() > kMostRows) {
    throw UserError(fmt::format("ep_dispatch: m is {}, at most {} on each of {} ranks", d.m,
                                kMostRows, d.world_size));
  }
}

// The roles of the program. Listing has one worker, since a token's place in a list depends on all
// tokens before it.
class Dispatcher {
 public:
  Dispatcher(ProgramBuilder& p, const EpDesc& d, const DispatchConfig& cfg)
      : p_(p), d_(d), cfg_(cfg), split_(split_of(d)), m_(p.extent("m", d.m)) {
    std::int64_t rows = d.rows_per_rank(), ranks = d.world_size;
    own_rows_ = ceil_div(m_, ranks);
    x_ = p.input("x", d.dtype, {own_rows_, d.hidden}, Space::kSymmetric);
    experts_ = p.table("experts", {own_rows_, d.top_k}, {ContractKind::kRange, 0, d.num_experts});
    weights_ = p.input("weights", DType::kF32, {own_rows_, d.top_k}, Space::kSymmetric);
    recv_ = p.output("recv", d.dtype, {ranks * rows, d.hidden});
    recv_experts_ = p.output("recv_experts", DType::kI32, {ranks * rows, d.top_k});
    recv_weights_ = p.output("recv_weights", DType::kF32, {ranks * rows, d.top_k});
    counts_ = p.output("counts", DType::kI32, {ranks, 1});
    positions_ = p.output("positions", DType::kI32, {rows, ranks});
    columns_ = p.buffer("columns", DType::kI32, {ranks, rows});  // positions, transposed
    BufferOptions symmetric{.space = Space::kSymmetric};
    ids_ = p.buffer("ids", DType::kI32, {rows, d.top_k}, symmetric);        // experts, for others
    sent_ = p.buffer("sent", DType::kI32, {ranks, 1}, symmetric);           // tokens for each rank
    lists_ = p.buffer("lists", DType::kI32, {ranks * rows, 1}, symmetric);  // which, by rank
    placed_ = p.signal("placed", 1);
    listed_ = p.signal("listed");
    done_ = p.signal("done");
  }

  std::int64_t slot_tiles() const { return ceil_div(d_.rows_per_rank(), cfg_.tile_slots); }
  std::int64_t fetch_tiles() const { return ceil_div(d_.rows_per_rank(), cfg_.tile_rows); }

  // Counts are sums of products with triangles of ones, exact in f32.
  void list() {
    std::int64_t chunk = cfg_.count_rows, ranks = d_.world_size;
    Value rank_numbers = p_.iota_cols(0, ranks);
    Value next = p_.zeros(DType::kF32, 1, ranks);  // free place of each rank's list
    p_.loop(ceil_div(d_.rows_per_rank(), chunk), [&](const Index& i) {
      Index row = p_.let("row", i * chunk);
      Value exists = p_.iota_rows(row, chunk) < p_.splat(DType::kI32, own_end());
      Value goes = p_.zeros(DType::kF32, chunk, ranks);  // 1: the token has an expert there
      p_.loop(d_.top_k, [&](const Index& j) {
        Value expert = p_.load(experts_.tile({row, j}, chunk, 1));
        p_.store(ids_.tile({row, j}, chunk, 1), expert);
        p_.loop(ranks, [&](const Index& r) {
          Value here = exists && expert >= p_.splat(DType::kI32, split_.first(r)) &&
                       expert < p_.splat(DType::kI32, split_.end(r));
          Value column = rank_numbers == p_.splat(DType::kI32, r);
          goes = where(here && column, number(1), goes);
        });
      });
      Value earlier = p_.iota_cols(0, chunk) < p_.iota_rows(0, chunk);
      Value place = p_.zeros(DType::kF32, chunk, ranks);
      place = dot(place, cast(earlier, DType::kF32), goes) + next;
      place = where(goes > number(0), place, number(-1));
      p_.store(positions_.tile({row, 0}, chunk, ranks), cast(place, DType::kI32));
      p_.loop(ranks, [&](const Index& r) {
        Value column = rank_numbers == p_.splat(DType::kI32, r);
        Value own = cast(row_sum(where(column, place, number(0))), DType::kI32);
        p_.store(columns_.tile({r, row}, 1, chunk), own.T());
      });
      next = next + col_sum(goes);
    });
    p_.store(sent_.tile({0, 0}, ranks, 1), cast(next, DType::kI32).T());
    p_.notify(placed_[0], p_.rank());
  }

  // The tokens of one rank's list, by comparing: rows chosen at run time could not be shown to be
  // written once.
  void look_up(const Tile& t) {
    p_.wait(placed_[0]);
    Index to = p_.let("to", t.index % d_.world_size);
    Index first = p_.let("first", t.index / d_.world_size * cfg_.tile_slots);
    Value place = p_.iota_rows(first, cfg_.tile_slots);
    Value next = p_.zeros(DType::kF32, cfg_.tile_slots, 1);  // the token's number + 1, or 0
    p_.loop(ceil_div(d_.rows_per_rank(), cfg_.count_rows), [&](const Index& i) {
      Value candidate = p_.iota_cols(i * cfg_.count_rows, cfg_.count_rows);
      Value taken = p_.load(columns_.tile({to, i * cfg_.count_rows}, 1, cfg_.count_rows));
      Value hit = taken == place && candidate < p_.splat(DType::kI32, own_end());
      next = next + row_sum(where(hit, cast(candidate, DType::kF32) + 1, number(0)));
    });
    p_.store(lists_.tile({block(to) + first, 0}, cfg_.tile_slots, 1).until_row(block(to + 1)),
             cast(next - 1, DType::kI32));
    p_.notify(listed_, to);
  }

  void fetch(const Tile& t) {
    std::int64_t rows = cfg_.tile_rows;
    Index from = p_.let("from", (p_.rank() + t.index) % d_.world_size);
    Index first = p_.let("first", t.index / d_.world_size * rows);
    p_.wait(listed_[from], slot_tiles());
    Index to_row = p_.let("to_row", block(from) + first), end = block(from + 1);
    auto listed = lists_.on(from).tile({block(p_.rank()) + first, 0}, rows, 1);
    auto pick = [&] {
      Value exists = p_.iota_rows(first, rows) < p_.splat(DType::kI32, d_.rows_per_rank());
      Value token = p_.load(listed.until_row(block(p_.rank() + 1)));
      return where(exists, token, p_.splat(DType::kI32, -1));
    };
    // Long rows and short ones are dealt out to threads in ways of their own, each by a list of its
    // own. Side by side, all are on their way before the first is stored.
    Value token_of_data = pick(), token = pick();
    Value data = p_.load_rows(x_.on(from).tile({0, 0}, rows, d_.hidden), token_of_data);
    Value ids = p_.load_rows(ids_.on(from).tile({0, 0}, rows, d_.top_k), token);
    Value shares = p_.load_rows(weights_.on(from).tile({0, 0}, rows, d_.top_k), token);
    p_.store(recv_.tile({to_row, 0}, rows, d_.hidden).until_row(end), data);
    p_.store(recv_experts_.tile({to_row, 0}, rows, d_.top_k).until_row(end),
             where(token < p_.splat(DType::kI32, 0), p_.splat(DType::kI32, -1), ids));
    p_.store(recv_weights_.tile({to_row, 0}, rows, d_.top_k).until_row(end), shares);
    p_.when(first == 0, [&] {
      p_.store(counts_.tile({from, 0}, 1, 1), p_.load(sent_.on(from).tile({p_.rank(), 0}, 1, 1)));
    });
    p_.notify(done_, from);
  }

  void wait_for_readers() {
    p_.loop(d_.world_size, [&](const Index& r) { p_.wait(done_[r], fetch_tiles()); });
  }

 private:
  Value number(double value) const { return p_.full(DType::kF32, 1, 1, value); }
  Index block(const Index& rank) const { return rank * d_.rows_per_rank(); }
  Index own_end() const { return min(own_rows_, m_ - p_.rank() * own_rows_); }

  ProgramBuilder& p_;
  const EpDesc& d_;
  const DispatchConfig& cfg_;
  ExpertSplit split_;
  Index m_, own_rows_;
  TensorRef x_, experts_, weights_, recv_, recv_experts_, recv_weights_, counts_, positions_;
  TensorRef columns_, ids_, sent_, lists_;
  SignalRef placed_, listed_, done_;
};

}  // namespace

ExpertSplit split_of(const EpDesc& d) {
  return {.num_experts = d.num_experts, .world_size = d.world_size, .groups = d.expert_groups};
}

std::string to_string(const EpDesc& d) {
  return fmt::format("m={} hidden={} top {} of {} experts in {} groups {} P={}", d.m, d.hidden,
                     d.top_k, d.num_experts, d.expert_groups, short_name(d.dtype), d.world_size);
}

DispatchConfig default_dispatch_config(const EpDesc& d, Target target) {
  std::int64_t rows = d.rows_per_rank();
  if (target == Target::kCpu) {
    return {.tile_rows = std::min<std::int64_t>(16, rows),
            .count_rows = std::min<std::int64_t>(64, rows),
            .tile_slots = std::min<std::int64_t>(64, rows)};
  }
  // Of a thread: elements on their way, and as many threads as leave the other roles registers.
  constexpr std::int64_t kElements = 256, kMostThreads = 256;
  DispatchConfig c{
      .count_rows = 32, .tile_slots = 32, .fetch_threads = row_threads(d.hidden, kMostThreads)};
  std::int64_t threads = c.fetch_threads > 0 ? c.fetch_threads : 256;
  c.tile_rows = std::clamp<std::int64_t>(kElements * threads / d.hidden, 1, 16);
  std::int64_t tiles =
      d.world_size * std::max(ceil_div(rows, c.tile_rows), ceil_div(rows, c.tile_slots));
  c.num_workers = gpu_workers(tiles, kGpuSms / 2 - 1);
  return c;
}

Program ep_dispatch(const EpDesc& d, const DispatchConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("ep_dispatch", d.world_size);
  Dispatcher dispatcher(p, d, cfg);
  p.role("list", Resource::sms(1), p.range(1), [&](const Tile&) { dispatcher.list(); });
  p.role("look_up", Resource::sms(cfg.num_workers), p.range(d.world_size * dispatcher.slot_tiles()),
         [&](const Tile& t) { dispatcher.look_up(t); });
  p.role("fetch", Resource::sms(cfg.num_workers), p.range(d.world_size * dispatcher.fetch_tiles()),
         [&](const Tile& t) { dispatcher.fetch(t); });
  p.on_end([&] { dispatcher.wait_for_readers(); });
  Program program = p.finish();
  program.roles.back().agents[0].num_threads = cfg.fetch_threads;
  return program;
}

}  // namespace stretto
