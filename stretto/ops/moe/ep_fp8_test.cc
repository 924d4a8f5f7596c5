// Tokens that travel as e4m3 with scales: what becomes of any values, not only of the exact ones of
// the catalog's cases, and that grouped products take rows and scales as they arrive. If these
// fail, experts compute with tokens that nobody sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/executor/program_runner.h"
#include "stretto/ops/moe/ep_place.h"
#include "stretto/ops/moe/ep_send.h"
#include "stretto/ops/moe/grouped_gemm.h"
#include "stretto/passes/pipeline.h"
#include "stretto/testing/cases/moe_case.h"

namespace stretto {
namespace {

using Tensors = std::map<std::string, Values>;

// One launch at the bounds; what each rank's outputs and state hold then is added to its tensors.
void launch(const Program& program, std::vector<Tensors>& of_rank) {
  auto schedule = std::make_shared<const Program>(run_pipeline(program));
  World world({.size = program.world_size});
  run_program(world, schedule, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    Tensors& tensors = of_rank[at(rank.index())];
    for (const Tensor& t : schedule->tensors) {
      if (t.kind != TensorKind::kInput && t.kind != TensorKind::kState) continue;
      if (auto it = tensors.find(t.name); it != tensors.end()) arguments.set(t.name, it->second);
    }
    instance.launch(arguments.args, arguments.extents);
    for (const Tensor& t : schedule->tensors) {
      if (t.kind == TensorKind::kOutput || t.kind == TensorKind::kState) {
        tensors[t.name] = arguments.get(t.name);
      }
    }
  });
}

// Blocks of unlike magnitudes, one of zeros.
Values tokens_of(const EpDesc& d, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  Values x(at(d.shape.rows_per_rank() * d.hidden));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = i < kScaleBlock ? 0 : std::ldexp(normal(random), static_cast<int>(i / kScaleBlock % 9));
  }
  return round_to(x, d.dtype);
}

std::vector<Tensors> sent(const EpDesc& d, std::mt19937_64& random) {
  std::vector<Tensors> of_rank(at(d.shape.world_size));
  for (Tensors& t : of_rank) {
    t["x"] = tokens_of(d, random);
    Values order(at(d.shape.num_experts));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t token = 0; token < d.shape.rows_per_rank(); ++token) {
      std::shuffle(order.begin(), order.end(), random);
      t["experts"].insert(t["experts"].end(), order.begin(), order.begin() + d.shape.top_k);
    }
    t["weights"] = Values(t["experts"].size(), 1.0);
  }
  launch(ep_send_fp8(d, {.num_workers = 2}), of_rank);
  return of_rank;
}

constexpr EpDesc kDesc{.shape = {.world_size = 2, .m = 14, .top_k = 2, .num_experts = 4},
                       .dtype = DType::kBF16,
                       .hidden = 384,
                       .expert_groups = 2};

TEST(EpSendFp8, EveryBlockIsWithinHalfAStepOfItsScale) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<Tensors> of_rank = sent(kDesc, random);
  std::size_t rows = at(kDesc.shape.rows_per_rank()), hidden = at(kDesc.hidden);
  for (std::size_t from = 0; from < of_rank.size(); ++from) {
    for (std::size_t i = 0; i < rows * hidden; ++i) {
      std::size_t begin = i / kScaleBlock * kScaleBlock, row = from * rows + i / hidden;
      const Values& x = of_rank[from]["x"];
      double largest = 0;
      for (std::size_t j = begin; j < begin + kScaleBlock; ++j) {
        largest = std::max(largest, std::abs(x[j]));
      }
      for (std::size_t to = 0; to < of_rank.size(); ++to) {
        if (of_rank[from]["positions"][i / hidden * of_rank.size() + to] < 0) continue;
        double step = of_rank[to]["recv_scales"][(from * rows * hidden + begin) / kScaleBlock];
        ASSERT_NEAR(step, std::max(largest, 1e-4) / 448, step * 0x1p-20) << "row " << row;
        // Three bits after the leading one; below 2^-6 steps of 2^-9.
        double got = of_rank[to]["recv"][from * rows * hidden + i] * step;
        double allowed = std::max(std::abs(x[i]) * 0x1p-4, step * 0x1p-10) * 1.001;
        ASSERT_NEAR(got, x[i], allowed) << "row " << row << " element " << i % hidden;
      }
    }
  }
}

TEST(EpSendFp8, GroupedProductsReadRowsAndScalesAsTheyArrive) {
  constexpr std::int64_t kColumns = 9;
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<Tensors> of_rank = sent(kDesc, random);
  GroupedDesc grouped{.world_size = kDesc.shape.world_size,
                      .m = kDesc.received_rows(),
                      .rows_per_token = kDesc.shape.top_k,
                      .num_experts = split_of(kDesc).share(),
                      .spare_rows = true,
                      .n = kColumns,
                      .k = kDesc.hidden,
                      .a_dtype = DType::kF8E4M3,
                      .b_dtype = DType::kF8E4M3,
                      .c_dtype = DType::kF32,
                      .gathered = true,
                      .scaling = Scaling::kBlock};
  launch(ep_place(kDesc, {.tiles = {.part_tokens = 4, .count_tokens = 4, .tile_slots = 8},
                          .num_workers = 2}),
         of_rank);
  std::size_t hidden = at(kDesc.hidden), top_k = at(kDesc.shape.top_k),
              rows = at(kDesc.shape.rows_per_rank());
  for (Tensors& t : of_rank) {
    t["a"] = t["recv"];
    t["scale_a"] = t["recv_scales"];
    t["b"] = random_values(at(grouped.num_experts * kColumns) * hidden, DType::kF8E4M3, random());
    t["scale_b"] = Values(at(grouped.num_experts) * hidden / kScaleBlock, 0.5);
    t["c"] = Values(at(grouped.m * grouped.rows_per_token * kColumns), 0.0);
  }
  launch(grouped_gemm(grouped, default_config(grouped)), of_rank);
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    Tensors& t = of_rank[r];
    for (std::size_t pair = 0; pair < t["slots"].size(); ++pair) {
      if (t["slots"][pair] < 0) continue;
      std::size_t from = pair / top_k / rows, token = pair / top_k % rows;
      auto own = static_cast<std::int64_t>(t["recv_experts"][pair]) -
                 split_of(kDesc).first(static_cast<int>(r));
      for (std::int64_t n = 0; n < kColumns; ++n) {
        double want = 0, magnitude = 0;
        for (std::size_t k = 0; k < hidden; ++k) {
          double term = of_rank[from]["x"][token * hidden + k] *
                        t["b"][at(own * kColumns + n) * hidden + k] * 0.5;
          want += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(t["c"][at(static_cast<std::int64_t>(t["slots"][pair]) * kColumns + n)], want,
                    magnitude * 0x1p-4)
            << "rank " << r << " token " << token << " of " << from;
      }
    }
  }
}

TEST(EpSendFp8, RefusesRowsThatAreNotWholeBlocks) {
  EpDesc d = kDesc;
  d.hidden = 200;
  expect_user_error([&] { ep_send_fp8(d, {}); }, {"hidden is 200", "multiple of 128"});
}

}  // namespace
}  // namespace stretto
