#include "stretto/ops/moe/route.h"

#include <fmt/format.h>

#include <algorithm>
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
std::int64_t experts_of_group(const RouteDesc& d) { return d.num_experts / d.n_group; }

void check(const RouteDesc& d, const RouteConfig& c) {
  check_sizes("moe_route", {{"m", d.m},
                            {"hidden", d.hidden},
                            {"num_experts", d.num_experts},
                            {"top_k", d.top_k},
                            {"world_size", d.world_size},
                            {"score_rows", c.score_rows},
                            {"tile_rows", c.tile_rows},
                            {"count_rows", c.count_rows},
                            {"tile_slots", c.tile_slots},
                            {"num_score_workers", c.num_score_workers},
                            {"num_workers", c.num_workers}});
  check_sizes("moe_route", {{"tile_k", c.tile_k}, {"score_experts", c.score_experts}}, 0);
  if (c.score_rows % c.tile_rows != 0) {
    throw UserError(fmt::format("moe_route: tile_rows is {}, must divide score_rows = {}",
                                c.tile_rows, c.score_rows));
  }
  check_dtype("moe_route", "dtype", d.dtype);
  check_dtype("moe_route", "weight_dtype", d.weight_dtype);
  if (d.top_k > d.num_experts) {
    throw UserError(fmt::format("moe_route: top_k is {}, of {} experts", d.top_k, d.num_experts));
  }
  check_sizes("moe_route", {{"n_group", d.n_group}, {"topk_group", d.topk_group}});
  if (d.num_experts % d.n_group != 0 || d.topk_group > d.n_group) {
    throw UserError(fmt::format("moe_route: topk_group is {} of n_group {}, for {} experts",
                                d.topk_group, d.n_group, d.num_experts));
  }
  if (std::int64_t most = d.topk_group * experts_of_group(d); d.top_k > most) {
    throw UserError(fmt::format("moe_route: top_k is {}, but {} of {} groups have {} experts",
                                d.top_k, d.topk_group, d.n_group, most));
  }
  if (limited(d) && d.group_score == GroupScore::kBestTwo && experts_of_group(d) < 2) {
    throw UserError(fmt::format("moe_route: n_group is {}, which leaves {} experts no second best",
                                d.n_group, d.num_experts));
  }
  if (d.m > kMostRows / d.top_k) {
    throw UserError(fmt::format("moe_route: m is {} with {} experts each, at most {} rows", d.m,
                                d.top_k, kMostRows));
  }
}

// The roles of the program: scoring, choosing by tiles of tokens, and placing.
class Router {
 public:
  Router(ProgramBuilder& p, const RouteDesc& d, const RouteConfig& cfg)
      : p_(p), d_(d), cfg_(cfg), m_(p.extent("m", d.m)) {
    x_ = p.input("x", d.dtype, {m_, d.hidden});
    gate_ = p.input("gate", d.weight_dtype, {d.num_experts, d.hidden});
    if (d.bias) bias_ = p.input("bias", DType::kF32, {1, d.num_experts});
    logits_ = p.buffer("logits", DType::kF32, {m_, d.num_experts});
    scored_ = p.signal("scored", ceil_div(d.m, cfg.score_rows));  // tiles of these tokens
    weights_ = p.output("weights", DType::kF32, {m_, d.top_k});
    if (!d.tables) {
      experts_ = p.output("experts", DType::kI32, {m_, d.top_k});
      return;
    }
    routed_ = p.signal("routed", 1);
    chosen_ = p.buffer("chosen", DType::kF32, {m_, d.num_experts});  // 1: an expert of the token
    experts_ = p.buffer("experts", DType::kI32, {m_, d.top_k});
    placing_.emplace(
        p,
        PlacingDesc{.tokens = m_,
                    .most_tokens = d.m,
                    .top_k = d.top_k,
                    .num_experts = d.num_experts,
                    .count_rows = cfg.count_rows,
                    .tile_slots = cfg.tile_slots,
                    .chosen =
                        [this](const Index& first) {
                          return p_.load(chosen_.tile({first, 0}, cfg_.count_rows, d_.num_experts));
                        },
                    .expert =
                        [this](const Index& first, const Index& j) {
                          return p_.load(experts_.tile({first, j}, cfg_.count_rows, 1));
                        },
                    .slots = p.output("slots", DType::kI32, {m_, d.top_k}),
                    .offsets = p.output("offsets", DType::kI32, {d.num_experts + 1}),
                    .row_tokens = p.output("tokens", DType::kI32, {m_ * d.top_k, 1})});
  }

  TileSpace score_tiles() const {
    return p_.grid(d_.m, d_.num_experts, cfg_.score_rows, score_experts());
  }
  TileSpace token_tiles() const { return p_.grid(d_.m, 1, cfg_.tile_rows, 1); }
  TileSpace placing_tiles() const { return placing_->tiles(); }

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

  void choose(const Tile& t) {
    p_.wait(scored_[t.row / cfg_.score_rows], ceil_div(d_.num_experts, score_experts()));
    // [tile_rows, num_experts]
    Value logit = p_.load(logits_.tile({t.row, 0}, cfg_.tile_rows, d_.num_experts));
    Value score = scores(logit);
    Value left = numbers(choosing_by(logit, score));
    if (limited(d_)) left = where(allowed(left), left, number(kTaken));
    Value mask = p_.zeros(DType::kF32, cfg_.tile_rows, d_.num_experts);
    Value weight = p_.zeros(DType::kF32, cfg_.tile_rows, d_.top_k);
    Value expert = p_.zeros(DType::kI32, cfg_.tile_rows, d_.top_k);
    p_.loop(d_.top_k, [&](const Index& j) {
      Value best = row_argmax(left);         // [tile_rows, 1]
      Value own = expert_numbers() == best;  // [tile_rows, num_experts]
      Value column = p_.iota_cols(0, d_.top_k) == p_.splat(DType::kI32, j);
      weight = where(column, row_sum(where(own, score, number(0))), weight);
      expert = where(column, best, expert);
      mask = where(own, number(1), mask);
      left = where(own, number(kTaken), left);
    });
    if (d_.norm_topk_prob) {
      Value sum = row_sum(weight);
      if (d_.scoring_func == Scoring::kSigmoid) sum = sum + kLeastSum;
      weight = weight / sum;
    }
    if (d_.routed_scaling_factor != 1) weight = weight * d_.routed_scaling_factor;
    p_.store(weights_.tile({t.row, 0}, cfg_.tile_rows, d_.top_k), weight);
    p_.store(experts_.tile({t.row, 0}, cfg_.tile_rows, d_.top_k), expert);
    if (!d_.tables) return;
    p_.store(chosen_.tile({t.row, 0}, cfg_.tile_rows, d_.num_experts), mask);
    p_.notify(routed_[0], p_.rank());
  }

  void place(const Tile& t) {
    placing_->place(t, [&] { p_.wait(routed_[0], ceil_div(d_.m, cfg_.tile_rows)); });
  }

 private:
  std::int64_t score_experts() const {
    return cfg_.score_experts == 0 ? d_.num_experts : cfg_.score_experts;
  }
  Value number(double value) const { return p_.full(DType::kF32, 1, 1, value); }
  Value expert_numbers() const { return p_.iota_cols(0, d_.num_experts); }

  Value numbers(const Value& v) const { return where(v > number(kLowest), v, number(kLowest)); }

  Value scores(const Value& logit) const {
    if (d_.scoring_func == Scoring::kSigmoid) return sigmoid(logit);
    Value odds = exp(logit - row_max(logit));
    return odds / row_sum(odds);
  }

  // What experts are compared by. Logits, which scores grow with, unless something is added to
  // scores: rounding makes scores equal whose logits are not.
  Value choosing_by(const Value& logit, const Value& score) const {
    if (d_.bias) return score + p_.load(bias_.tile({0, 0}, 1, d_.num_experts));
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
    Value chosen = p_.zeros(DType::kF32, cfg_.tile_rows, d_.num_experts);
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
  TensorRef x_, gate_, bias_, logits_, chosen_, experts_, weights_;
  std::optional<Placing> placing_;
  SignalRef scored_, routed_;
};

}  // namespace

std::string to_string(const RouteDesc& d) {
  std::string groups;
  if (limited(d)) {
    groups = fmt::format(" in {} of {} groups by {}", d.topk_group, d.n_group,
                         d.group_score == GroupScore::kBestTwo ? "two" : "one");
  }
  std::string scale;
  if (d.routed_scaling_factor != 1) scale = fmt::format(" times {}", d.routed_scaling_factor);
  return fmt::format("m={} hidden={} top {} of {} experts{}{}{}{}{}{} {} (gate {}) P={}", d.m,
                     d.hidden, d.top_k, d.num_experts, groups,
                     d.scoring_func == Scoring::kSigmoid ? " sigmoid" : "", d.bias ? " biased" : "",
                     d.norm_topk_prob ? " normalised" : "", scale, d.tables ? "" : ", no tables",
                     short_name(d.dtype), short_name(d.weight_dtype), d.world_size);
}

RouteConfig default_config(const RouteDesc& d, Target target) {
  if (target == Target::kCpu) {
    std::int64_t rows = std::min<std::int64_t>(64, d.m);
    return {.score_rows = rows,
            .tile_rows = rows,
            .count_rows = rows,
            .tile_slots = std::min<std::int64_t>(64, d.m * d.top_k)};
  }
  constexpr int kWorkers = kGpuSms / 3;  // of each role
  GpuLoop loop = gpu_loop({.m = d.m,
                           .n = d.num_experts,
                           .k = d.hidden,
                           .a_dtype = d.dtype,
                           .b_dtype = d.weight_dtype,
                           .num_sms = kWorkers});
  PlacingTiles placing = gpu_placing_tiles(d.m, d.num_experts);
  RouteConfig c{.score_rows = loop.tile.bm,
                .score_experts = loop.tile.bn,
                .tile_k = loop.tile.bk,
                .num_stages = loop.num_stages,
                .tile_rows = std::gcd(loop.tile.bm, std::int64_t{16}),
                .count_rows = placing.count_rows,
                .tile_slots = placing.tile_slots};
  c.num_score_workers =
      gpu_workers(ceil_div(d.m, c.score_rows) * ceil_div(d.num_experts, c.score_experts), kWorkers);
  std::int64_t tiles = std::max(ceil_div(d.m, c.tile_rows), ceil_div(d.m * d.top_k, c.tile_slots));
  c.num_workers = gpu_workers(tiles, kWorkers);
  return c;
}

Program moe_route(const RouteDesc& d, const RouteConfig& cfg) {
  check(d, cfg);
  ProgramBuilder p("moe_route", d.world_size);
  Router router(p, d, cfg);
  p.role("score", Resource::sms(cfg.num_score_workers).pipelined(cfg.num_stages),
         router.score_tiles(), [&](const Tile& t) { router.score(t); });
  p.role("choose", Resource::sms(cfg.num_workers), router.token_tiles(),
         [&](const Tile& t) { router.choose(t); });
  if (!d.tables) return p.finish();
  p.role("place", Resource::sms(cfg.num_workers), router.placing_tiles(),
         [&](const Tile& t) { router.place(t); });
  return p.finish();
}

}  // namespace stretto
