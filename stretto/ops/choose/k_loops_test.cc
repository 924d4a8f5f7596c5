// What products do in every step besides multiplying, in the configs that shapes get. If this
// fails, tiles that reach past the end of a rank's rows take up to twice as long: all of their
// threads meet in every step, once rows that nobody sees are zero.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ir/block_ops.h"
#include "stretto/lang/program_builder.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/candidates.h"
#include "stretto/ops/choose/configs.h"
#include "stretto/passes/pipeline.h"

namespace stretto {
namespace {

bool is_product(const Op& op) {
  return op.code == OpCode::kDot || op.code == OpCode::kDotAsync || op.code == OpCode::kDotScaled;
}

// What one step of a loop does, without the steps of loops within it.
void for_each_op_of_step(const Block& body, const std::function<void(const Op&)>& visit) {
  for (const Op& op : body) {
    visit(op);
    if (op.code == OpCode::kLoop) continue;
    for (const Block& within : op.bodies) for_each_op_of_step(within, visit);
  }
}

// Names of the pipes of which a product's steps take slots that have only some of their rows.
std::set<std::string> cut_off(const Program& schedule) {
  std::set<std::string> out;
  for (const Role& role : schedule.roles) {
    for (const Agent& agent : role.agents) {
      for_each_op(agent.body, [&](const Op& loop) {
        if (loop.code != OpCode::kLoop) return;
        bool multiplies = false;
        std::set<std::string> pipes;
        for_each_op_of_step(loop.bodies[0], [&](const Op& op) {
          multiplies |= is_product(op);
          if (op.code != OpCode::kPipeGet || op.exprs.empty()) return;
          pipes.insert(role.pipes[static_cast<std::size_t>(op.symbol)].name);
        });
        if (multiplies) out.insert(pipes.begin(), pipes.end());
      });
    }
  }
  return out;
}

TEST(CutOff, SlotsAreFound) {
  ProgramBuilder p("sample", 1);
  Index m = p.extent("m", 64);
  auto a = p.input("a", DType::kBF16, {64, 64});
  auto b = p.input("b", DType::kBF16, {64, 64});
  auto c = p.output("c", DType::kF32, {64, 64});
  p.role("gemm", Resource::sms(1).pipelined(2), p.range(1), [&](const Tile&) {
    Value sum = p.zeros(DType::kF32, 64, 64);
    p.loop(4, [&](const Index& k) {
      Value rows = p.load(a.tile({0, k * 16}, 64, 16).until_row(m));
      sum = dot(sum, rows, p.load(b.tile({0, k * 16}, 64, 16)).T());
    });
    p.store(c.tile({0, 0}, 64, 64), sum);
  });
  EXPECT_EQ(cut_off(run_pipeline(p.finish())), std::set<std::string>{"a"});
}

class KLoops : public testing::TestWithParam<int> {
 protected:
  // Few rows, those of which SMs have a tile each, and many; ranks' shares are seldom whole tiles.
  std::vector<std::int64_t> some_rows() {
    std::vector<std::int64_t> out;
    for (auto [least, most] : {std::pair(1, 256), std::pair(257, 2048), std::pair(2049, 9000)}) {
      out.push_back(std::uniform_int_distribution<std::int64_t>(least, most)(random_));
    }
    return out;
  }
  const std::uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
};

TEST_P(KLoops, CutNothingOff) {
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed_));
  for (const OperatorInfo& op : catalog()) {
    const std::string name = op.name;
    if (name.find("gemm") == std::string::npos) continue;
    for (std::int64_t m : some_rows()) {
      OpShape shape{.world_size = GetParam(), .m = m, .n = 3072, .k = 3072, .dtype = DType::kBF16};
      for (const Candidate& c : candidates(name, shape).fused) {
        EXPECT_EQ(cut_off(run_pipeline(c.program())), std::set<std::string>())
            << name << " m=" << m << " | " << c.config;
      }
    }
  }
}

template <typename Desc, typename Config, typename Kind>
void expect_none_cut_off(const Desc& d, const std::vector<Kind>& kinds,
                         Program (*program)(const Desc&, const Config&)) {
  for (Kind kind : kinds) {
    for (const Config& config : gpu_configs(d, kind, {})) {
      EXPECT_EQ(cut_off(run_pipeline(program(d, config))), std::set<std::string>())
          << to_string(d) << " | " << to_string(config);
    }
  }
}

// What the catalog does not ask for.
TEST_P(KLoops, CutNothingOffWithResidualsScalesAndWeightsByRows) {
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed_));
  auto of_dtypes = [](auto desc, DType factors, auto result) {
    desc.a_dtype = desc.b_dtype = factors;
    desc.*result = DType::kBF16;
    return desc;
  };
  auto expect_none = [](const auto& rs, const auto& ar, const auto& ag) {
    expect_none_cut_off(rs, std::vector{Scatter::kEpilogue, Scatter::kCopyEngine}, gemm_rs);
    expect_none_cut_off(ar, std::vector{ReduceShots::kOne, ReduceShots::kShared, ReduceShots::kTwo},
                        gemm_ar);
    expect_none_cut_off(ag, std::vector{Gather::kSend, Gather::kPush}, ag_gemm);
  };
  for (std::int64_t m : some_rows()) {
    auto sized = [&](auto desc) {
      desc.world_size = GetParam(), desc.m = m, desc.n = 4096, desc.k = 2048;
      return desc;
    };
    GemmRsDesc rs = of_dtypes(sized(GemmRsDesc()), DType::kBF16, &GemmRsDesc::out_dtype);
    GemmArDesc ar = of_dtypes(sized(GemmArDesc()), DType::kBF16, &GemmArDesc::out_dtype);
    AgGemmDesc ag = of_dtypes(sized(AgGemmDesc()), DType::kBF16, &AgGemmDesc::c_dtype);
    rs.average = rs.residual = ar.residual = ag.bias = true;
    expect_none(rs, ar, ag);
    rs.b_kn = ar.b_kn = ag.b_kn = true;
    expect_none(rs, ar, ag);
    rs.b_kn = ar.b_kn = ag.b_kn = false;
    for (Scaling scaling : {Scaling::kRowWise, Scaling::kBlock}) {
      rs.scaling = ar.scaling = ag.scaling = scaling;
      expect_none(of_dtypes(rs, DType::kF8E4M3, &GemmRsDesc::out_dtype),
                  of_dtypes(ar, DType::kF8E4M3, &GemmArDesc::out_dtype),
                  of_dtypes(ag, DType::kF8E4M3, &AgGemmDesc::c_dtype));
    }
  }
}

// Padding has a bias and a residual, too.
TEST_P(KLoops, CutNothingOffOfTokensThatAreSent) {
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed_));
  const GpuTarget gpu;
  for (std::int64_t m : some_rows()) {
    UlyssesDesc d{.world_size = GetParam(), .m = m, .n = 3072, .k = 3072};
    d.dtype = d.weight_dtype = random_() % 2 == 0 ? DType::kBF16 : DType::kF16;
    d.bias = random_() % 2 == 0;
    d.residual = true;
    for (UlyssesConfig config : gpu_a2a_gemm_configs(d, gpu)) {
      for (int slots : {0, 2}) {
        if (slots > 0 && config.loop.tile.bn % 16 != 0) continue;  // not of a slot's width
        config.loop.store_slots = slots;
        EXPECT_EQ(cut_off(run_pipeline(a2a_gemm(d, config))), std::set<std::string>())
            << to_string(d) << " | " << to_string(config);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, KLoops, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace stretto
