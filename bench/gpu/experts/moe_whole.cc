// A whole mixture of experts in one launch against NCCL's all-gather, the products of both layers,
// the weighted sum and NCCL's reduce-scatter.
#include "bench/gpu/experts/moe_comparison.h"

namespace stretto::bench {
namespace {

class WholeLayer : public Comparison {
 public:
  WholeLayer(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
             const MoeShape& shape, const MoeOptions& options)
      : Comparison(world, nccl, random, shape, options),
        candidates_(whole_layer_candidates(shape, world.device(0).properties().num_sms)),
        desc_(whole_layer(shape)),
        tiles_(tiles_of(desc_, candidates_[0].config)),  // all have the same
        x_(random.allocate(bf16_bytes(share_, shape.hidden))),
        a_(random.allocate(bf16_bytes(shape.m, shape.hidden))),
        all_(random.allocate(bf16_bytes(shape.m, shape.hidden))),
        between_(allocate_poisoned(world, bf16_bytes(tiles_.num_rows(), desc_.ffn))),
        products_(allocate_poisoned(world, bf16_bytes(tiles_.num_rows(), shape.hidden))),
        partial_(allocate_poisoned(world, bf16_bytes(shape.m, shape.hidden))),
        ours_(allocate_poisoned(world, bf16_bytes(share_, shape.hidden))),
        theirs_(allocate_poisoned(world, bf16_bytes(share_, shape.hidden))),
        weights_(equal_weights()),
        alone_(upload_tables_in_global_order()) {
    for (SymmetricGpuMemory* b : {&gate_, &up_, &down_}) {
      *b = random.allocate(bf16_bytes(desc_.shape.num_experts * desc_.ffn, desc_.hidden));
    }
    copy_own_tokens(x_, a_);
    gather();
    world.synchronize();
  }

 protected:
  std::size_t num_candidates() const override { return candidates_.size(); }
  bool has_new_products(std::size_t i) const override { return candidates_[i].new_products; }

  Made fused_at(std::size_t i) override {
    const WholeLayerCandidate& candidate = candidates_[i];
    const MadeTables& made = made_tables(tiles_, candidate.order);
    const DeviceTables& t = made.tables;
    Tensors tensors = {{"tiles_used", &t.used},
                       {"tile_experts", &t.experts},
                       {"tile_needs", &t.needs},
                       {"row_tokens", &t.tokens},
                       {"slots", &t.slots},
                       {"weights", &weights_},
                       {"a", &a_},
                       {"b_gate", &gate_},
                       {"b_up", &up_},
                       {"b", &down_},
                       {"out", &ours_}};
    return {in_order(candidate), load(moe_layer(desc_, candidate.config), tensors), &made};
  }

  Made product_at(std::size_t i) override {
    const WholeLayerCandidate& candidate = candidates_[i];
    AgGroupedDesc d = first_layer(shape_);
    d.gathers = false;
    Tensors first = {{"tiles_used", &alone_.used},
                     {"tile_experts", &alone_.experts},
                     {"tile_needs", &alone_.needs},
                     {"row_tokens", &alone_.tokens},
                     {"a", &all_},
                     {"b_gate", &gate_},
                     {"b_up", &up_},
                     {"c", &between_}};
    Tensors second = {{"tiles_used", &alone_.used},
                      {"tile_experts", &alone_.experts},
                      {"a", &between_},
                      {"b", &down_},
                      {"products", &products_}};
    auto both = load(ag_grouped_gemm(d, candidate.config.first), first);
    both->then(load(tile_products(second_layer(shape_), candidate.alone), second));
    return {products_of(candidate), std::move(both)};
  }

  void prepare(std::size_t, std::size_t product) override {
    Tensors tensors = {{"slots", &alone_.slots},
                       {"weights", &weights_},
                       {"products", &products_},
                       {"partial", &partial_}};
    sum_ = load(weighted_sums(second_layer(shape_), candidates_[product].alone), tensors);
  }

  void before_products() override { gather(); }
  void after_products() override {
    sum_->launch();
    scatter();
  }
  void collective() override {
    gather();
    scatter();
  }

  std::string difference() override {
    // The libraries round every rank's partial sum, ours all but the own one; NCCL rounds after every
    // addition besides, the last of which is part of `relative`.
    double roundings = world_.size();
    return compare_bf16(world_, ours_, theirs_, shape_.hidden,
                        {.relative = 0x1p-7, .terms = &partial_, .of_terms = 0x1p-9 * roundings});
  }

 private:
  DeviceTables upload_tables_in_global_order() const {
    std::vector<TileTables> of_rank = tables(tiles_, {});
    for (int r = 0; r < world_.size(); ++r) in_global_order(of_rank[at(r)], r);
    return on_devices(of_rank);
  }
  void gather() { nccl_.all_gather(parts(x_, all_), at(share_ * shape_.hidden), kMoeDType); }
  void scatter() {
    nccl_.reduce_scatter(parts(partial_, theirs_), at(share_ * shape_.hidden), kMoeDType);
  }

  std::vector<WholeLayerCandidate> candidates_;
  MoeLayerDesc desc_;
  ExpertTiles tiles_;
  SymmetricGpuMemory x_, a_, all_, between_, products_, partial_, ours_, theirs_;
  SymmetricGpuMemory gate_, up_, down_, weights_;
  DeviceTables alone_;
  std::unique_ptr<Loaded> sum_;
};

}  // namespace

MoeResult compare_whole_layer(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
                              const MoeShape& shape, const MoeOptions& options) {
  return WholeLayer(world, nccl, random, shape, options).run();
}

}  // namespace stretto::bench
