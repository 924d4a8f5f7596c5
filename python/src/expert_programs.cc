#include "expert_programs.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "programs.h"
#include "stretto/base/errors.h"
#include "stretto/ops/moe/ag_grouped_gemm.h"
#include "stretto/ops/moe/combine.h"
#include "stretto/ops/moe/ep_combine.h"
#include "stretto/ops/moe/ep_dispatch.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_return.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/expert_tables.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/ops/moe/grouped_gemm_rs.h"
#include "stretto/ops/moe/moe_layer.h"
#include "stretto/ops/moe/route.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

using Size = std::int64_t;
using Text = const std::string&;

// Of one rank by itself.
void bind_local(nb::module_& m) {
  m.def("moe_route", [](Text dtype, Text gate_dtype, Size rows, Size hidden, Size experts,
                        Size top_k, bool tables, bool sigmoid, bool bias, Size n_group,
                        Size topk_group, bool best_two, bool normalise, double scale, bool gpu) {
    RouteDesc d{.dtype = parse_dtype(dtype),
                .weight_dtype = parse_dtype(gate_dtype),
                .m = rows,
                .hidden = hidden,
                .num_experts = experts,
                .top_k = top_k,
                .tables = tables,
                .scoring_func = sigmoid ? Scoring::kSigmoid : Scoring::kSoftmax,
                .bias = bias,
                .n_group = n_group,
                .topk_group = topk_group,
                .group_score = best_two ? GroupScore::kBestTwo : GroupScore::kBest,
                .norm_topk_prob = normalise,
                .routed_scaling_factor = scale};
    return moe_route(d, default_config(d, target(gpu)));
  });
  m.def("grouped_gemm",
        [](Text dtype, bool scaled, Text result, Size rows, Size rows_per_token, Size experts,
           bool spare, Size n, Size k, bool gathered, bool swiglu, bool masked, bool gpu) {
          GroupedDesc d{.m = rows,
                        .rows_per_token = rows_per_token,
                        .num_experts = experts,
                        .spare_rows = spare,
                        .n = n,
                        .k = k,
                        .gathered = gathered,
                        .swiglu = swiglu,
                        .layout = masked ? RowLayout::kMasked : RowLayout::kContiguous,
                        .scaling = scaled ? Scaling::kBlock : Scaling::kNone};
          d.a_dtype = d.b_dtype = parse_dtype(dtype);
          d.c_dtype = parse_dtype(result);
          return grouped_gemm(d, default_config(d, target(gpu)));
        });
}

// Every expert split over the ranks.
void bind_split(nb::module_& m) {
  m.def("moe_combine",
        [](int ranks, Text dtype, Size rows, Size hidden, Size top_k, bool scatter, bool gpu) {
          CombineDesc d{.dtype = parse_dtype(dtype),
                        .m = rows,
                        .hidden = hidden,
                        .top_k = top_k,
                        .sequence_parallel = scatter,
                        .world_size = ranks};
          return moe_combine(d, default_config(d, target(gpu)));
        });
  auto first = [](int ranks, Text dtype, Size rows, Size top_k, Size experts) {
    AgGroupedDesc d{.world_size = ranks, .m = rows, .top_k = top_k, .num_experts = experts};
    d.a_dtype = d.b_dtype = d.c_dtype = parse_dtype(dtype);
    return d;
  };
  // Rows of a tile of both layers, and how many tiles there can be.
  m.def("expert_tiles", [=](int ranks, Text dtype, Size rows, Size top_k, Size experts, bool gpu) {
    AgGroupedDesc d = first(ranks, dtype, rows, top_k, experts);
    ExpertTiles tiles = tiles_of(d, default_config(d, target(gpu)));
    return nb::make_tuple(tiles.tile_rows, tiles.num_tiles());
  });
  m.def("expert_tables",
        [](int ranks, Size rows, Size top_k, Size experts, Size tile_rows, bool gpu) {
          // A tile an expert: in classes its weights, which take the time, would be read again.
          bool few = gpu && rows * top_k <= experts * tile_rows;
          ExpertTablesDesc d{.tiles = {.world_size = ranks,
                                       .m = rows,
                                       .top_k = top_k,
                                       .num_experts = experts,
                                       .tile_rows = tile_rows},
                             .order = {.stages = few ? 1 : ranks}};
          return expert_tables(d, default_config(d, target(gpu)));
        });
  m.def("ag_grouped_gemm", [=](int ranks, Text dtype, Size rows, Size top_k, Size experts, Size n,
                               Size k, bool swiglu, Size tile_rows, bool gpu) {
    AgGroupedDesc d = first(ranks, dtype, rows, top_k, experts);
    d.n = n, d.k = k, d.swiglu = swiglu, d.gathers = ranks > 1;
    AgGroupedConfig config = default_config(d, target(gpu));
    config.tile.bm = tile_rows;
    return ag_grouped_gemm(d, config);
  });
  m.def("grouped_gemm_rs", [](int ranks, Text dtype, Size rows, Size top_k, Size experts, Size n,
                              Size k, bool residual, bool all_reduce, Size tile_rows, bool gpu) {
    GroupedRsDesc d{.world_size = ranks,
                    .m = rows,
                    .top_k = top_k,
                    .num_experts = experts,
                    .n = n,
                    .k = k,
                    .residual = residual,
                    .all_reduce = all_reduce};
    d.a_dtype = d.b_dtype = d.out_dtype = parse_dtype(dtype);
    GroupedRsConfig config = default_config(d, target(gpu));
    config.tile.bm = tile_rows;
    return grouped_gemm_rs(d, config);
  });
  m.def("moe_layer", [](int ranks, Text dtype, Size rows, Size top_k, Size experts, Size hidden,
                        Size ffn, bool residual, Size tile_rows, bool gpu) {
    MoeLayerDesc d{.world_size = ranks,
                   .m = rows,
                   .top_k = top_k,
                   .num_experts = experts,
                   .hidden = hidden,
                   .ffn = ffn,
                   .dtype = parse_dtype(dtype),
                   .residual = residual};
    MoeLayerConfig config = default_config(d, target(gpu));
    config.first.tile.bm = config.second.tile.bm = tile_rows;
    return moe_layer(d, config);
  });
}

// Whole experts spread over the ranks.
void bind_spread(nb::module_& m) {
  m.def("expert_parallel", [](Text program, int ranks, Text dtype, Size rows, Size hidden,
                              Size experts, Size top_k, bool gpu) {
    EpDesc d{.dtype = parse_dtype(dtype),
             .m = rows,
             .hidden = hidden,
             .num_experts = experts,
             .top_k = top_k,
             .world_size = ranks,
             .expert_groups = ranks};
    if (program == "ep_dispatch") return ep_dispatch(d, default_dispatch_config(d, target(gpu)));
    if (program == "ep_send") return ep_send(d, default_send_config(d, target(gpu)));
    if (program == "ep_send_fp8") return ep_send_fp8(d, default_send_config(d, target(gpu)));
    if (program == "ep_place") return ep_place(d, default_place_config(d, target(gpu)));
    if (program == "ep_combine") return ep_combine(d, default_combine_config(d, target(gpu)));
    if (program == "ep_return") return ep_return(d, default_return_config(d, target(gpu)));
    throw InternalError(fmt::format("'{}' is no program of expert parallelism", program));
  });
}

}  // namespace

// Sizes in the order of the Python side, python/stretto/moe.py and expert_parallel.py.
void bind_experts(nb::module_& m) {
  bind_local(m);
  bind_split(m);
  bind_spread(m);
}

}  // namespace stretto::python
