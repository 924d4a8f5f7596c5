#include "stretto/ops/moe/route.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

#include "stretto/base/errors.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/linear.h"
#include "stretto/ops/moe/placing.h"

namespace stretto {
namespace {

constexpr double kLowest = -1e30;  // below every score; NaN counts as this
constexpr double kTaken = -3e38;

constexpr double kLeastSum = 1e-20;  // that weights are divided by, where all scores may be 0

bool limited(const RouteDesc& d) { return d.topk_group < d.n_group; }
std::int64_t experts_of_group(const RouteDesc& d) { return d.shape.num_experts / d.n_group; }

void check(const RouteDesc& d, const RouteConfig& c) {
  check_sizes("moe_route", {{"m", d.shape.m},
                            {"hidden", d.hidden},
                            {"num_experts", d.shape.num_experts},
                            {"top_k", d.shape.top_k},
                            {"world_size", d.shape.world_size},
                            {"score_rows", c.score_rows},
                            {"tile_rows", c.tile_rows},
                            {"num_score_workers", c.num_score_workers},
                            {"num_groups", c.num_groups},
                            {"num_workers", c.num_workers}});
  check_sizes("moe_route", {{"tile_k", c.tile_k}, {"score_experts", c.score_experts}}, 0);
  if (c.score_rows % c.tile_rows != 0) {
    throw UserError(fmt::format("moe_route: tile_rows is {}, must divide score_rows = {}",
                                c.tile_rows, c.score_rows));
  }
  if (d.tables) {
    check_placing_tiles("moe_route", c.placing);
    if (c.placing.part_tokens % c.tile_rows != 0) {
      throw UserError(fmt::format("moe_route: tile_rows is {}, must divide part_tokens = {}",
                                  c.tile_rows, c.placing.part_tokens));
    }
  }
  check_dtype("moe_route", "dtype", d.dtype);
  check_dtype("moe_route", "weight_dtype", d.weight_dtype);
  if (d.shape.top_k > d.shape.num_experts) {
    throw UserError(
        fmt::format("moe_route: top_k is {}, of {} experts", d.shape.top_k, d.shape.num_experts));
  }
  check_sizes("moe_route", {{"n_group", d.n_group}, {"topk_group", d.topk_group}});
  if (d.shape.num_experts % d.n_group != 0 || d.topk_group > d.n_group) {
    throw UserError(fmt::format("moe_route: topk_group is {} of n_group {}, for {} experts",
                                d.topk_group, d.n_group, d.shape.num_experts));
  }
  if (std::int64_t most = d.topk_group * experts_of_group(d); d.shape.top_k > most) {
    throw UserError(fmt::format("moe_route: top_k is {}, but {} of {} groups have {} experts",
                                d.shape.top_k, d.topk_group, d.n_group, most));
  }
  if (limited(d) && d.group_score == GroupScore::kBestTwo && experts_of_group(d) < 2) {
    throw UserError(fmt::format("moe_route: n_group is {}, which leaves {} experts no second best",
                                d.n_group, d.shape.num_experts));
  }
  if (d.shape.m > kMostRows / d.shape.top_k) {
    throw UserError(fmt::format("moe_route: m is {} with {} experts each, at most {} rows",
                                d.shape.m, d.shape.top_k, kMostRows));
  }
}

// The roles of the program: scoring, choosing by tiles of tokens, and placing.
class Router {
 public:
  Router(ProgramBuilder& p, const RouteDesc& d, const RouteConfig& cfg)
      : p_(p), d_(d), cfg_(cfg), m_(p.extent("m", d.shape.m)) {
    x_ = p.input("x", d.dtype, {m_, d.hidden});
    gate_ = p.input("gate", d.weight_dtype, {d.shape.num_experts, d.hidden});
    if (d.bias) bias_ = p.input("bias", DType::kF32, {1, d.shape.num_experts});
    logits_ = p.buffer("logits", DType::kF32, {m_, d.shape.num_experts});
    scored_ = p.signal("scored", ceil_div(d.shape.m, cfg.score_rows));  // tiles of these tokens
    weights_ = p.output("weights", DType::kF32, {m_, d.shape.top_k});
    if (!d.tables) {
      experts_ = p.output("experts", DType::kI32, {m_, d.shape.top_k});
      return;
    }
    experts_ = p.buffer("experts", DType::kI32, {m_, d.shape.top_k});
    routed_ = p.signal("routed", ceil_div(d.shape.m, cfg.placing.part_tokens));
    placing_.emplace(
        p, PlacingDesc{.tokens = m_,
                       .most_tokens = d.shape.m,
                       .top_k = d.shape.top_k,
                       .num_experts = d.shape.num_experts,
                       .tiles = cfg.placing,
                       .experts = experts_,
                       .slots = p.output("slots", DType::kI32, {m_, d.shape.top_k}),
                       .offsets = p.output("offsets", DType::kI32, {d.shape.num_experts + 1}),
                       .row_tokens = p.output("tokens", DType::kI32, {m_ * d.shape.top_k, 1})});
  }

  TileSpace score_tiles() const {
    return p_.grid(d_.shape.m, d_.shape.num_experts, cfg_.score_rows, score_experts());
  }
  TileSpace route_tiles() const {
    if (!d_.tables) return p_.range(token_tiles());
    return p_.range(cfg_.num_groups * tiles_of_group() + placing_->num_tiles());
  }

  void score(const Tile& t) {
    std::int64_t rows = cfg_.score_rows, cols = score_experts();
    std::int64_t tile_k = cfg_.tile_k == 0 ? d_.hidden : cfg_.tile_k;
    Value sum = p_.zeros(DType::kF32, rows, cols);
    p_.loop(ceil_div(d_.hidden, tile_k), [&](const Index& step) {
      Index k = step * tile_k;
      sum = dot(sum, p_.load(x_.tile({t.row, k}, rows, tile_k)),
                p_.load(gate_.tile({t.col, k}, cols, tile_k)).T());
    });
    p_.store(logits_.tile({t.row, t.col}, rows, cols), sum);
    p_.notify(scored_[t.m], p_.rank());
  }

  // What waits for tiles of this role comes behind them, so that a worker that takes tiles in order
  // never waits for itself.
  void route(const Tile& t) {
    if (!d_.tables) return choose(t.index * cfg_.tile_rows);
    const std::int64_t all = cfg_.num_groups * tiles_of_group();
    p_.when(t.index < all, [&] { choose_and_count(t.index); });
    p_.when(t.index >= all, [&] { placing_->place(t.index - all); });
  }

 private:
  std::int64_t score_experts() const {
    return cfg_.score_experts == 0 ? d_.shape.num_experts : cfg_.score_experts;
  }
  std::int64_t token_tiles() const { return ceil_div(d_.shape.m, cfg_.tile_rows); }
  std::int64_t tiles_of_part() const { return cfg_.placing.part_tokens / cfg_.tile_rows; }
  std::int64_t blocks_of_part() const { return placing_->num_blocks() / placing_->num_parts(); }
  std::int64_t parts_of_group() const {
    return ceil_div(placing_->num_parts(), std::int64_t{cfg_.num_groups});
  }
  std::int64_t tiles_of_group() const {
    return parts_of_group() * (tiles_of_part() + blocks_of_part());
  }

  // A group's tokens, then its blocks.
  void choose_and_count(const Index& index) {
    const std::int64_t tiles = parts_of_group() * tiles_of_part();
    Index group = p_.let("group", index / tiles_of_group());
    Index i = p_.let("in_group", index % tiles_of_group());
    Index tile = p_.let("token_tile", group * tiles + i);
    Index block = p_.let("part_block", group * parts_of_group() * blocks_of_part() + i - tiles);
    p_.when(i < tiles && tile < token_tiles(), [&] { choose(tile * cfg_.tile_rows); });
    p_.when(i >= tiles && block < placing_->num_blocks(), [&] {
      placing_->count(block, [&](const Index& part) {
        p_.wait(routed_[part], min(token_tiles() - part * tiles_of_part(), tiles_of_part()));
      });
    });
  }

  void choose(const Index& first) {
    p_.wait(scored_[first / cfg_.score_rows], ceil_div(d_.shape.num_experts, score_experts()));
    // [tile_rows, num_experts]
    Value logit = p_.load(logits_.tile({first, 0}, cfg_.tile_rows, d_.shape.num_experts));
    Value score = scores(logit);
    Value left = numbers(choosing_by(logit, score));
    if (limited(d_)) left = where(allowed(left), left, number(kTaken));
    Value weight = p_.zeros(DType::kF32, cfg_.tile_rows, d_.shape.top_k);
    p_.loop(d_.shape.top_k, [&](const Index& j) {
      Value best = row_argmax(left);         // [tile_rows, 1]
      Value own = expert_numbers() == best;  // [tile_rows, num_experts]
      Value column = p_.iota_cols(0, d_.shape.top_k) == p_.splat(DType::kI32, j);
      weight = where(column, row_sum(where(own, score, number(0))), weight);
      left = where(own, number(kTaken), left);
      p_.store(experts_.tile({first, j}, cfg_.tile_rows, 1), best);
    });
    if (d_.norm_topk_prob) {
      Value sum = row_sum(weight);
      if (d_.scoring_func == Scoring::kSigmoid) sum = sum + kLeastSum;
      weight = weight / sum;
    }
    if (d_.routed_scaling_factor != 1) weight = weight * d_.routed_scaling_factor;
    p_.store(weights_.tile({first, 0}, cfg_.tile_rows, d_.shape.top_k), weight);
    if (d_.tables) p_.notify(routed_[first / cfg_.placing.part_tokens], p_.rank());
  }

  Value number(double value) const { return p_.full(DType::kF32, 1, 1, value); }
  Value expert_numbers() const { return p_.iota_cols(0, d_.shape.num_experts); }

  Value numbers(const Value& v) const { return where(v > number(kLowest), v, number(kLowest)); }

  Value scores(const Value& logit) const {
    if (d_.scoring_func == Scoring::kSigmoid) return sigmoid(logit);
    Value odds = exp(logit - row_max(logit));
    return odds / row_sum(odds);
  }

  // What experts are compared by. Logits, which scores grow with, unless something is added to
  // scores: rounding makes scores equal whose logits are not.
  Value choosing_by(const Value& logit, const Value& score) const {
    if (d_.bias) return score + p_.load(bias_.tile({0, 0}, 1, d_.shape.num_experts));
    bool added = limited(d_) && d_.group_score == GroupScore::kBestTwo;
    return added ? score : logit;
  }

  Value in_group(const Value& first) const {
    Value end = first + p_.full(DType::kI32, 1, 1, static_cast<double>(experts_of_group(d_)));
    return expert_numbers() >= first && expert_numbers() < end;
  }

  // Whether an expert's group is among the token's best: bool [tile_rows, num_experts].
  Value allowed(const Value& by) const {
    Value groups = p_.zeros(DType::kF32, cfg_.tile_rows, d_.n_group);
    p_.loop(d_.n_group, [&](const Index& g) {
      Value own =
          where(in_group(p_.splat(DType::kI32, g * experts_of_group(d_))), by, number(kLowest));
      Value best = row_max(own);
      if (d_.group_score == GroupScore::kBestTwo) {
        Value others = where(expert_numbers() == row_argmax(own), number(kLowest), own);
        best = best + row_max(others);
      }
      groups = where(p_.iota_cols(0, d_.n_group) == p_.splat(DType::kI32, g), best, groups);
    });
    Value chosen = p_.zeros(DType::kF32, cfg_.tile_rows, d_.shape.num_experts);
    p_.loop(d_.topk_group, [&](const Index&) {
      Value best = row_argmax(groups);  // [tile_rows, 1]
      Value first = best * p_.full(DType::kI32, 1, 1, static_cast<double>(experts_of_group(d_)));
      chosen = where(in_group(first), number(1), chosen);
      groups = where(p_.iota_cols(0, d_.n_group) == best, number(kTaken), groups);
    });
    return chosen > number(0);
  }

  ProgramBuilder& p_;
  const RouteDesc& d_;
  const RouteConfig& cfg_;
  Index m_;
  TensorRef x_, gate_, bias_, logits_, experts_, weights_;
  std::optional<Placing> placing_;
  SignalRef scored_, routed_;
};

}  // namespace

const char* name(Scoring scoring) { return scoring == Scoring::kSigmoid ? "sigmoid" : "softmax"; }
const char* name(GroupScore score) { return score == GroupScore::kBest ? "best" : "best_two"; }

NamedFields fields_of(RouteDesc& d) {
  using enum Scoring;
  using enum GroupScore;
  return {{"m", d.shape.m},
          {"hidden", d.hidden},
          NamedField("top_k", d.shape.top_k).as("top {}"),
          NamedField("num_experts", d.shape.num_experts).as("of {} experts"),
          NamedField("topk_group", d.topk_group, 1).as("in {}"),
          NamedField("n_group", d.n_group, 1).as("of {} groups"),
          NamedField("group_score", d.group_score, {kBestTwo, kBest}, kBestTwo).as("by {}"),
          NamedField("scoring_func", d.scoring_func, {kSoftmax, kSigmoid}, kSoftmax).as("{}"),
          NamedField("bias", d.bias).as("biased"),
          NamedField("norm_topk_prob", d.norm_topk_prob).as("normalised"),
          NamedField("routed_scaling_factor", d.routed_scaling_factor, 1).as("times {}"),
          NamedField("tables", d.tables).unless_set("no tables"),
          NamedField("dtype", d.dtype).as("{}"),
          NamedField("weight_dtype", d.weight_dtype).as("(gate {})"),
          NamedField("world_size", d.shape.world_size).as("P={}")};
}

Program moe_route(const RouteDesc& d, const RouteConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("moe_route", d.shape.world_size);
  Router router(p, d, cfg);
  p.role("score", Resource::sms(cfg.num_score_workers).pipelined(cfg.num_stages),
         router.score_tiles(), [&](const Tile& t) { router.score(t); });
  p.role("route", Resource::sms(cfg.num_workers), router.route_tiles(),
         [&](const Tile& t) { router.route(t); });
  return p.finish();
}

NamedFields fields_of(RouteConfig& c) {
  return joined({{"score_rows", c.score_rows},
                 {"score_experts", c.score_experts, 0},
                 {"tile_k", c.tile_k, 0},
                 {"stages", c.num_stages, 0},
                 {"score_workers", c.num_score_workers},
                 {"tile_rows", c.tile_rows},
                 {"groups", c.num_groups, 1},
                 {"workers", c.num_workers}},
                fields_of(c.placing));
}

}  // namespace stretto
