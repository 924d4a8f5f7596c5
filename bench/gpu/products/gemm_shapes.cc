#include "bench/gpu/products/gemm_shapes.h"

#include <fmt/format.h>

#include <sstream>

#include "stretto/base/errors.h"
#include "stretto/ir/op_info.h"

namespace stretto::bench {
namespace {

struct LayerSizes {
  const char* model;
  std::int64_t hidden, intermediate, heads, kv_heads, head_dim;
};

constexpr LayerSizes kModels[] = {
    {"llama3-8b", 4096, 14336, 32, 8, 128},
    {"llama3-70b", 8192, 28672, 64, 8, 128},
    {"qwen3-32b", 5120, 25600, 64, 8, 128},
};
constexpr std::int64_t kRows[] = {1024, 4096, 8192};

}  // namespace

std::vector<GemmShape> tensor_parallel_shapes(int tp) {
  if (tp < 1 || tp > 8 || 8 % tp != 0) {
    throw UserError(fmt::format("tp is {}, need 1, 2, 4 or 8: the models have 8 kv heads", tp));
  }
  std::vector<GemmShape> shapes;
  auto add = [&](const std::string& label, std::int64_t n, std::int64_t k) {
    for (std::int64_t m : kRows) shapes.push_back({label, m, n, k});
  };
  for (const LayerSizes& s : kModels) {
    std::string model = s.model;
    add(model + "/qkv", (s.heads + 2 * s.kv_heads) * s.head_dim / tp, s.hidden);
    add(model + "/o", s.hidden, s.heads * s.head_dim / tp);
    add(model + "/gate_up", 2 * s.intermediate / tp, s.hidden);
    add(model + "/down", s.hidden, s.intermediate / tp);
  }
  shapes.push_back({"cube", 8192, 8192, 8192});
  return shapes;
}

GemmDesc gemm_desc(const GemmShape& shape, DType dtype) {
  return {.m = shape.m,
          .n = shape.n,
          .k = shape.k,
          .a_dtype = dtype,
          .b_dtype = dtype,
          .c_dtype = dtype};
}

std::vector<GemmConfig> gpu_gemm_configs(int num_sms, bool quick) {
  struct Shape {
    GemmTile tile;  // of the whole cluster
    int cluster, stages, consumers = 1, stagger = 0, store_slots = 0;
  };
  // Stages fill the 227 KiB of shared memory beside the store's staging. Odd widths fill the last
  // wave of tiles where wide ones leave SMs idle. A stagger of two steps of 256 columns is as long
  // as the store of a tile, by estimate.
  constexpr Shape kShapes[] = {
      {{128, 256, 64}, 1, 4},          {{256, 256, 64}, 2, 4},
      {{128, 192, 64}, 1, 4},          {{128, 256, 64}, 1, 4, 1, 2},
      {{128, 128, 64}, 1, 6, 1, 3},    {{256, 128, 64}, 2, 6},
      {{128, 128, 64}, 1, 6},          {{128, 224, 64}, 1, 4},
      {{128, 160, 64}, 1, 5},          {{128, 96, 64}, 1, 6},
      {{256, 192, 64}, 2, 4},          {{256, 160, 64}, 2, 5},
      {{256, 256, 64}, 2, 4, 1, 2},    {{128, 192, 64}, 1, 4, 1, 2},
      {{128, 224, 64}, 1, 4, 1, 2},    {{128, 160, 64}, 1, 5, 1, 3},
      {{256, 192, 64}, 2, 4, 1, 2},    {{256, 160, 64}, 2, 5, 1, 3},
      {{256, 128, 64}, 2, 6, 1, 4},    {{128, 128, 64}, 1, 6, 1, 4},
      {{128, 256, 64}, 1, 3, 1, 0, 4}, {{128, 128, 64}, 1, 6, 1, 3, 2},
      {{128, 192, 64}, 1, 4, 1, 2, 4}, {{256, 128, 64}, 2, 4},
      {{128, 128, 64}, 1, 4},          {{256, 128, 64}, 2, 4, 1, 3},
      {{128, 128, 64}, 1, 4, 1, 3},    {{256, 160, 64}, 2, 4, 1, 3},
      {{128, 160, 64}, 1, 4, 1, 3},    {{128, 160, 64}, 1, 5, 2},
      {{128, 168, 64}, 1, 5, 2},       {{128, 176, 64}, 1, 5, 2},
      {{128, 152, 64}, 1, 5, 2},       {{128, 144, 64}, 1, 5, 2},
  };
  std::vector<GemmConfig> configs;
  for (const Shape& s : kShapes) {
    configs.push_back({.loop = {.tile = s.tile,
                                .num_compute_sms = num_sms / s.cluster,
                                .raster = s.consumers > 1 ? 4 : 8,
                                .num_stages = s.stages,
                                .num_consumers = s.consumers,
                                .cluster_size = s.cluster,
                                .stagger = s.stagger,
                                .store_slots = s.store_slots}});
    if (s.consumers == 1 && (s.tile.bn == 128 || s.tile.bn == 256)) {
      configs.push_back(configs.back());
      configs.back().loop.raster = 1;
    }
    if (quick && configs.size() >= 9) break;
  }
  return configs;
}

namespace {

bool parse_products(const std::string& word, ProductOrder& products) {
  for (ProductOrder p : {ProductOrder::kAhead, ProductOrder::kAheadInTurn, ProductOrder::kInTurn,
                         ProductOrder::kAwaited}) {
    if (word != name(p)) continue;
    products = p;
    return true;
  }
  return false;
}

}  // namespace

GemmConfig parse_gemm_config(const std::string& text, int num_sms) {
  GemmConfig config{.loop = {.raster = 8, .num_stages = 4}};
  std::istringstream in(text);
  char x1 = 0, x2 = 0;
  in >> config.loop.tile.bm >> x1 >> config.loop.tile.bn >> x2 >> config.loop.tile.bk;
  bool ok = !in.fail() && x1 == 'x' && x2 == 'x';
  int workers = 0;
  for (std::string word; ok && in >> word;) {
    if (word == "stages") {
      in >> config.loop.num_stages;
    } else if (word == "cluster") {
      in >> config.loop.cluster_size;
    } else if (word == "raster") {
      in >> config.loop.raster;
    } else if (word == "consumers") {
      in >> config.loop.num_consumers;
    } else if (word == "stagger") {
      in >> config.loop.stagger;
    } else if (word == "store_slots") {
      in >> config.loop.store_slots;
    } else if (word == "products") {
      std::string order;
      in >> order;
      ok = parse_products(order, config.loop.products);
    } else if (word == "workers") {
      in >> workers;
    } else if (word == "split") {
      in >> config.split_k;
    } else if (word == "swap_ab") {
      config.swap_ab = true;
    } else {
      ok = false;
    }
    ok = ok && !in.fail();
  }
  if (!ok || config.loop.cluster_size < 1) {
    throw UserError(fmt::format(
        "config '{}': need e.g. '256x256x64 stages 4 cluster 2 raster 8 workers 66'", text));
  }
  config.loop.num_compute_sms = workers > 0 ? workers : num_sms / config.loop.cluster_size;
  return config;
}

}  // namespace stretto::bench
