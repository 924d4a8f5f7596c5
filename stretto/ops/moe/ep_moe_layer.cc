#include "stretto/ops/moe/ep_moe_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/ops/moe/fused_layers.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/table_maker.h"
#include "stretto/ops/operator/field_fit.h"

namespace stretto {
namespace {

ExpertTablesDesc tables_desc(const EpMoeLayerDesc& d, const EpMoeLayerConfig& c) {
  return {.tiles = tiles_of(d, c), .order = c.order};
}

void check(const EpMoeLayerDesc& d, const EpMoeLayerConfig& c) {
  check_split("ep_moe_layer", d.split());
  check_sizes("ep_moe_layer", {{"tell_tokens", c.tell_tokens}});
  check_same_workers("ep_moe_layer", c.first, c.second);
  auto fields = FieldFit::refusing(to_string(d));
  EpMoeLayerConfig will_run = c;
  fields.only("num_reduce_sms", will_run.second.num_reduce_sms, 0, "those who multiply sum");
  fields.only("last_blocks", will_run.second.last_blocks,
              ceil_div(d.hidden, c.second.loop.tile.bn * c.second.block_tiles),
              "those who multiply make all sums");
  fields.only("num_copy_queues", will_run.first.num_copy_queues, 0, "those who multiply send");
  fields.only("sort_rows", will_run.first.sort_rows, 0, "no threads are beside the products");
  check(tables_desc(d, c), c.tables);
}

// What ranks tell each other of their tokens, and the tables that each makes of it.
class Routing {
 public:
  Routing(ProgramBuilder& p, const EpMoeLayerDesc& d, const EpMoeLayerConfig& cfg, const Index& m);

  const TileTableRefs& tables() const { return refs_; }
  // What a worker does in its index-th turn: first the telling, then the tables.
  std::int64_t num_tellings() const { return ceil_div(d_.shape.rows_per_rank(), cfg_.tell_tokens); }
  void tell(const Index& index, const SignalRef& ready);
  std::int64_t num_table_turns() const { return maker_.num_turns(); }
  void make(const Index& index) { maker_.turn(index); }
  // Whether a rank has an expert of one of the own tokens.
  Index goes(const Index& token, const Index& rank) const;

 private:
  MadeTables declare();

  ProgramBuilder& p_;
  const EpMoeLayerDesc& d_;
  const EpMoeLayerConfig& cfg_;
  ExpertTablesDesc tables_desc_;
  Index m_, share_;              // tokens of all ranks, of each
  TensorRef experts_, weights_;  // of the own tokens
  TensorRef all_experts_, all_weights_;
  SignalRef told_;  // by rank: tellings that are there
  MadeTables made_;
  TableMaker maker_;
  TileTableRefs refs_;
};

Routing::Routing(ProgramBuilder& p, const EpMoeLayerDesc& d, const EpMoeLayerConfig& cfg,
                 const Index& m)
    : p_(p),
      d_(d),
      cfg_(cfg),
      tables_desc_(tables_desc(d, cfg)),
      m_(m),
      share_(ceil_div(m, d.shape.world_size)),
      made_(declare()),
      maker_(p, tables_desc_, cfg.tables, m, made_),
      refs_{.used = made_.used,
            .experts = made_.tile_experts,
            .needs = made_.tile_needs,
            .tokens = made_.row_tokens,
            .slots = made_.slots,
            .weights = all_weights_,
            .wait = [this] { maker_.wait_for_all(); }} {}

MadeTables Routing::declare() {
  const ExpertTiles& tiles = tables_desc_.tiles;
  experts_ = p_.table("experts", {share_ * d_.shape.top_k, 1},
                      {ContractKind::kRange, 0, d_.shape.num_experts});
  weights_ = p_.input("weights", DType::kF32, {share_, d_.shape.top_k});
  Index pairs = m_ * d_.shape.top_k;
  all_experts_ = p_.buffer("all_experts", DType::kI32, {pairs, 1}, {.space = Space::kSymmetric});
  all_weights_ =
      p_.buffer("all_weights", DType::kF32, {m_, d_.shape.top_k}, {.space = Space::kSymmetric});
  told_ = p_.signal("told", d_.shape.world_size);
  auto table = [&](const char* name, std::vector<Index> shape, const Index& lo, const Index& hi) {
    return p_.made_table(name, std::move(shape), {ContractKind::kRange, lo, hi});
  };
  std::int64_t count = tiles.num_tiles();
  Index rows = share_ * d_.shape.world_size;
  MadeTables made;
  made.experts = all_experts_;
  made.wait_for_experts = [this](const Index& rank) { p_.wait(told_[rank], num_tellings()); };
  made.used = table("tiles_used", {1}, 0, count + 1);
  made.tile_experts = table("tile_experts", {count, 1}, 0, tiles.split().share());
  made.tile_needs = table("tile_needs", {count, 1}, 0, d_.shape.world_size + 1);
  made.row_tokens = table("row_tokens", {tiles.num_rows(), 1}, -1, rows);
  made.slots = p_.buffer("slots", DType::kI32, {pairs, 1});
  made.made = p_.signal("tables", 1);
  return made;
}

void Routing::tell(const Index& index, const SignalRef& ready) {
  const std::int64_t tokens = cfg_.tell_tokens, pairs = tokens * d_.shape.top_k;
  Index first = p_.let("first", index * tokens);
  Index end = p_.let("end", min(share_, m_ - p_.rank() * share_));  // of the own tokens
  Value chosen =
      p_.load(experts_.tile({first * d_.shape.top_k, 0}, pairs, 1).until_row(end * d_.shape.top_k));
  Value shares = p_.load(weights_.tile({first, 0}, tokens, d_.shape.top_k).until_row(end));
  p_.loop(d_.shape.world_size, [&](const Index& i) {
    Index to = p_.let("to", (p_.rank() + i) % d_.shape.world_size);
    if (d_.shape.world_size > 1) p_.when(i > 0, [&] { p_.wait(ready, to); });
    Index row = p_.let("row", p_.rank() * share_ + first), last = p_.rank() * share_ + end;
    p_.store(all_experts_.on(to)
                 .tile({row * d_.shape.top_k, 0}, pairs, 1)
                 .until_row(last * d_.shape.top_k),
             chosen);
    p_.store(all_weights_.on(to).tile({row, 0}, tokens, d_.shape.top_k).until_row(last), shares);
    p_.notify(told_[p_.rank()], to);
  });
}

Index Routing::goes(const Index& token, const Index& rank) const {
  const ExpertSplit split = d_.split();
  Index first = p_.let("first_expert", split.first(rank)), end = p_.let("end", split.end(rank));
  Index any = 0;
  for (std::int64_t j = 0; j < d_.shape.top_k; ++j) {
    Index expert = p_.read(experts_, {token * d_.shape.top_k + j, 0});
    any = any || (first <= expert && expert < end);
  }
  return p_.let("goes", any);
}

// What workers do first: they tell, send tokens and make the tables. In the order in which others
// wait for it: a worker never waits for what it does later.
FirstTurns exchange(ProgramBuilder& p, Routing& routing, AgGrouped& first, std::int64_t workers) {
  const std::int64_t tellings = routing.num_tellings(), pushes = first.num_pushes();
  const std::int64_t sends = tellings + pushes, makes = routing.num_table_turns();
  auto turns = [&p](const Index& index, std::int64_t begin, std::int64_t count, const auto& turn) {
    if (count == 0) return;
    p.when(index >= begin && index < begin + count,
           [&] { turn(p.let("turn", max(index - begin, 0))); });
  };
  auto send = [=, &routing, &first](const Index& index) {
    turns(index, 0, tellings, [&](const Index& i) { routing.tell(i, first.ready()); });
    turns(index, tellings, pushes, [&](const Index& i) {
      first.push(i,
                 [&](const Index& token, const Index& rank) { return routing.goes(token, rank); });
    });
  };
  auto make = [=, &routing](const Index& index, std::int64_t begin) {
    turns(index, begin, makes, [&](const Index& i) { routing.make(i); });
  };
  const std::int64_t senders = workers / 2, makers = workers - senders;
  if (pushes == 0 || senders == 0) {
    return {.num = sends + makes, .turn = [=](const Index& index) {
              send(index);
              make(index, sends);
            }};
  }
  // Half of the workers send, which fills the links, while the others make the tables.
  return {.num = workers * std::max(ceil_div(sends, senders), ceil_div(makes, makers)),
          .turn = [=, &p](const Index& index) {
            Index worker = p.let("worker", index % workers);
            Index round = p.let("round", index / workers);
            p.when(
                worker < senders, [&] { send(p.let("sent", round * senders + worker)); },
                [&] { make(p.let("made", round * makers + max(worker - senders, 0)), 0); });
          }};
}

}  // namespace

MoeLayerDesc own_part(const EpMoeLayerDesc& d) {
  ExpertShape own = d.shape;
  own.num_experts = d.split().share();
  return {.shape = own,
          .hidden = d.hidden,
          .ffn = d.ffn,
          .dtype = d.dtype,
          .residual = d.residual,
          .bias_ranks = d.biases ? d.split().ranks_per_group() : 0,
          .gate = d.gate};
}

ExpertTiles tiles_of(const EpMoeLayerDesc& d, const EpMoeLayerConfig& c) {
  return {.shape = d.shape, .tile_rows = c.first.loop.tile.bm, .expert_groups = d.expert_groups};
}

EpMoeSteps steps_of(const EpMoeLayerDesc& d) {
  EpMoeSteps steps{.exchange = {.shape = d.shape,
                                .dtype = d.dtype,
                                .hidden = d.hidden,
                                .expert_groups = d.expert_groups},
                   .first = {.world_size = d.shape.world_size,
                             .rows_per_token = d.shape.top_k,
                             .num_experts = d.split().share(),
                             .spare_rows = true,
                             .n = d.ffn,
                             .k = d.hidden,
                             .a_dtype = d.dtype,
                             .b_dtype = d.dtype,
                             .c_dtype = d.dtype,
                             .gathered = true,
                             .swiglu = true,
                             .gate = d.gate},
                   .second = {}};
  steps.first.m = steps.exchange.received_rows();
  steps.second = steps.first;
  std::swap(steps.second.n, steps.second.k);
  steps.second.gathered = steps.second.swiglu = false;
  steps.second.gate = {};
  return steps;
}

NamedFields fields_of(EpMoeLayerDesc& d) {
  NamedFields all = fields_of(d.shape);
  all = joined(std::move(all), {NamedField("expert_groups", d.expert_groups).as("in {} groups"),
                                {"hidden", d.hidden},
                                {"ffn", d.ffn},
                                NamedField("dtype", d.dtype).as("{}"),
                                {"residual", d.residual},
                                {"biases", d.biases}});
  return joined(std::move(all), fields_of(d.gate));
}

std::string to_string(const EpMoeLayerDesc& d) { return "ep_moe_layer " + text_of(d); }

NamedFields fields_of(EpMoeLayerConfig& c) {
  NamedFields all =
      joined(within("first", fields_of(c.first)), within("second", fields_of(c.second)));
  all = joined(std::move(all), within("tables", fields_of(c.tables)));
  all.emplace_back("tell_tokens", c.tell_tokens);
  return joined(std::move(all), within("order", fields_of(c.order)));
}

Program ep_moe_layer(const EpMoeLayerDesc& d, const EpMoeLayerConfig& cfg) {
  const MoeLayerDesc part = own_part(d);
  const AgGroupedDesc first_desc = first_layer(part);
  const GroupedRsDesc second_desc = second_layer(part);
  check(first_desc, cfg.first);
  check(second_desc, cfg.second);
  check(d, cfg);
  ProgramBuilder p("ep_moe_layer", d.shape.world_size);
  const ExpertTiles tiles = tiles_of(d, cfg);
  Index m = p.extent("m", d.shape.m);
  Routing routing(p, d, cfg, m);
  AgGrouped first(p, first_desc, cfg.first, m, routing.tables());
  GroupedRs second(p, second_desc, cfg.second, m, routing.tables());
  if (first.sends()) p.on_start([&] { first.announce(), second.announce(); });
  multiply_both(p, tiles, cfg.first, first, second,
                exchange(p, routing, first, cfg.first.loop.num_compute_sms));
  if (first.sends()) p.on_end([&] { first.wait_for_all(); });
  return p.finish();
}

}  // namespace stretto
