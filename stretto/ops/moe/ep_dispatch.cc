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
                              {"num_workers", c.num_workers},
                              {"num_fetch_workers", c.num_fetch_workers}});
  check_dtype("ep_dispatch", "dtype", d.dtype);
  check_split("ep_dispatch", split_of(d));
  if (d.rows_per_rank() > kMostRows) {
    throw UserError(fmt::format("ep_dispatch: m is {}, at most {} on each of {} ranks", d.m,
                                kMostRows, d.world_size));
  }
}

constexpr std::int64_t kSomeBlocks = 64;  // whose counts a worker looks at at a time

// The roles of the program. Lists are made by all workers of one: blocks of tokens are counted,
// then placed behind the blocks before, then every place of a list looks its token up.
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
    block_counts_ = p.buffer("block_counts", DType::kI32, {blocks(), ranks});
    places_ = p.buffer("places", DType::kI32, {rows, ranks});
    block_lists_ = p.buffer("block_lists", DType::kI32, {blocks() * ranks * cfg.count_rows, 1});
    begins_ = p.buffer("begins", DType::kI32, {ranks, blocks()});
    BufferOptions symmetric{.space = Space::kSymmetric};
    ids_ = p.buffer("ids", DType::kI32, {rows, d.top_k}, symmetric);        // experts, for others
    sent_ = p.buffer("sent", DType::kI32, {ranks, 1}, symmetric);           // tokens for each rank
    lists_ = p.buffer("lists", DType::kI32, {ranks * rows, 1}, symmetric);  // which, by rank
    counted_ = p.signal("counted", 1);
    placed_ = p.signal("placed", 1);
    listed_ = p.signal("listed");
    done_ = p.signal("done");
  }

  std::int64_t slot_tiles() const { return ceil_div(d_.rows_per_rank(), cfg_.tile_slots); }
  std::int64_t fetch_tiles() const { return ceil_div(d_.rows_per_rank(), cfg_.tile_rows); }

  // Counting comes first, so that a worker that takes tiles in order never waits for itself.
  TileSpace list_tiles() const { return p_.range(2 * blocks() + d_.world_size * slot_tiles()); }
  void list(const Tile& t) {
    p_.when(t.index < blocks(), [&] { count(t.index); });
    p_.when(t.index >= blocks() && t.index < 2 * blocks(), [&] { place(t.index - blocks()); });
    p_.when(t.index >= 2 * blocks(), [&] { look_up(t.index - 2 * blocks()); });
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
  Value integer(const Index& value) const { return p_.splat(DType::kI32, value); }
  std::int64_t blocks() const { return ceil_div(d_.rows_per_rank(), cfg_.count_rows); }
  // A block's tokens for a rank, in order.
  Index block_list(const Index& block, const Index& rank) const {
    return (block * d_.world_size + rank) * cfg_.count_rows;
  }

  void count(const Index& block);
  void place(const Index& block);
  void look_up(const Index& index);

  Index block(const Index& rank) const { return rank * d_.rows_per_rank(); }
  Index own_end() const { return min(own_rows_, m_ - p_.rank() * own_rows_); }

  ProgramBuilder& p_;
  const EpDesc& d_;
  const DispatchConfig& cfg_;
  ExpertSplit split_;
  Index m_, own_rows_;
  TensorRef x_, experts_, weights_, recv_, recv_experts_, recv_weights_, counts_, positions_;
  TensorRef block_counts_;  // [blocks, P] tokens of each block for each rank
  TensorRef places_;        // [S, P] of each token among those of its block, or -1
  TensorRef block_lists_;   // [blocks * P * count_rows, 1] by block and rank
  TensorRef begins_;        // [P, blocks] tokens for each rank in the blocks before
  TensorRef ids_, sent_, lists_;
  SignalRef counted_, placed_, listed_, done_;
};

// Places are products with a triangle of ones, exact in f32.
void Dispatcher::count(const Index& block) {
  std::int64_t rows = cfg_.count_rows, ranks = d_.world_size;
  Index row = p_.let("row", block * rows);
  Value rank_numbers = p_.iota_cols(0, ranks), tokens = p_.iota_rows(row, rows);
  Value exists = tokens < integer(own_end());
  Value ids = p_.load(experts_.tile({row, 0}, rows, d_.top_k));
  p_.store(ids_.tile({row, 0}, rows, d_.top_k), ids);
  Value goes = p_.zeros(DType::kF32, rows, ranks);  // 1: the token has an expert there
  p_.loop(ranks, [&](const Index& r) {
    Value here = exists && ids >= integer(split_.first(r)) && ids < integer(split_.end(r));
    Value any = row_max(where(here, number(1), number(0)));
    goes = where(rank_numbers == integer(r), any, goes);
  });
  Value earlier = p_.iota_cols(0, rows) < p_.iota_rows(0, rows);
  Value place = dot(p_.zeros(DType::kF32, rows, ranks), cast(earlier, DType::kF32), goes);
  place = where(goes > number(0), place, number(-1));
  p_.store(places_.tile({row, 0}, rows, ranks), cast(place, DType::kI32));
  p_.loop(ranks, [&](const Index& r) {
    Value own = row_sum(where(rank_numbers == integer(r), place, number(0)));  // [rows, 1]
    Value at = cast(own, DType::kI32) == p_.iota_cols(0, rows);
    Slice list = block_lists_.tile({block_list(block, r), 0}, 1, rows);
    p_.store(list.rows_along(1).cols_along(0), col_sum(where(at, tokens, integer(0))));
  });
  p_.store(block_counts_.tile({block, 0}, 1, ranks), cast(col_sum(goes), DType::kI32));
  p_.notify(counted_[0], p_.rank());
}

void Dispatcher::place(const Index& block) {
  std::int64_t rows = cfg_.count_rows, ranks = d_.world_size;
  p_.wait(counted_[0], blocks());
  Value before = p_.zeros(DType::kI32, 1, ranks), all = p_.zeros(DType::kI32, 1, ranks);
  p_.loop(ceil_div(blocks(), kSomeBlocks), [&](const Index& i) {
    Value some = p_.load(block_counts_.tile({i * kSomeBlocks, 0}, kSomeBlocks, ranks));
    Value earlier = p_.iota_rows(i * kSomeBlocks, kSomeBlocks) < integer(block);
    before = before + col_sum(where(earlier, some, integer(0)));
    all = all + col_sum(some);
  });
  Value places = p_.load(places_.tile({block * rows, 0}, rows, ranks));
  Value positions = where(places < integer(0), integer(-1), places + before);
  p_.store(positions_.tile({block * rows, 0}, rows, ranks), positions);
  auto by_rank = [&](const TensorRef& to, const Index& col) {
    return to.tile({0, col}, 1, ranks).rows_along(1).cols_along(0);
  };
  p_.store(by_rank(begins_, block), before);
  p_.when(block == 0, [&] { p_.store(by_rank(sent_, 0), all); });
  p_.notify(placed_[0], p_.rank());
}

// In the last block that begins before a place or there: rows chosen at run time could not be shown
// to be written once.
void Dispatcher::look_up(const Index& index) {
  std::int64_t rows = cfg_.tile_slots;
  Index to = p_.let("to", index % d_.world_size);
  Index first = p_.let("first", index / d_.world_size * rows);
  p_.wait(placed_[0], blocks());
  Value place = p_.iota_rows(first, rows);
  Value exists = place < p_.load(sent_.tile({to, 0}, 1, 1));
  Value passed = p_.zeros(DType::kI32, rows, 1), begin = p_.zeros(DType::kI32, rows, 1);
  p_.loop(ceil_div(blocks(), kSomeBlocks), [&](const Index& i) {
    Value begins = p_.load(begins_.tile({to, i * kSomeBlocks}, 1, kSomeBlocks));
    Value known = p_.iota_cols(i * kSomeBlocks, kSomeBlocks) < integer(blocks());
    Value is_before = known && begins <= place;
    passed = passed + row_sum(where(is_before, integer(1), integer(0)));
    begin = maximum(begin, row_max(where(is_before, begins, integer(0))));
  });
  Value block = passed - integer(1), list_rows = integer(cfg_.count_rows);
  Value from = (block * integer(d_.world_size) + integer(to)) * list_rows + (place - begin);
  Value token = p_.load_rows(block_lists_.tile({0, 0}, rows, 1), where(exists, from, integer(-1)));
  p_.store(lists_.tile({this->block(to) + first, 0}, rows, 1).until_row(this->block(to + 1)),
           where(exists, token, integer(-1)));
  p_.notify(listed_, to);
}

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
  constexpr int kWorkers = kGpuSms / 4;
  std::int64_t slots = ceil_div(rows * d.world_size, std::int64_t{32 * kWorkers}) * 32;
  DispatchConfig c{.count_rows = 64,
                   .tile_slots = std::clamp<std::int64_t>(slots, 32, 128),
                   .fetch_threads = row_threads(d.hidden, kMostThreads)};
  std::int64_t threads = c.fetch_threads > 0 ? c.fetch_threads : 256;
  c.tile_rows = std::clamp<std::int64_t>(kElements * threads / d.hidden, 1, 16);
  c.num_workers = gpu_workers(d.world_size * ceil_div(rows, c.tile_slots), kWorkers);
  c.num_fetch_workers =
      gpu_workers(d.world_size * ceil_div(rows, c.tile_rows), kGpuSms - c.num_workers);
  return c;
}

Program ep_dispatch(const EpDesc& d, const DispatchConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("ep_dispatch", d.world_size);
  Dispatcher dispatcher(p, d, cfg);
  p.role("list", Resource::sms(cfg.num_workers), dispatcher.list_tiles(),
         [&](const Tile& t) { dispatcher.list(t); });
  p.role("fetch", Resource::sms(cfg.num_fetch_workers),
         p.range(d.world_size * dispatcher.fetch_tiles()),
         [&](const Tile& t) { dispatcher.fetch(t); });
  p.on_end([&] { dispatcher.wait_for_readers(); });
  Program program = p.finish();
  program.roles.back().agents[0].num_threads = cfg.fetch_threads;
  return program;
}

}  // namespace stretto
