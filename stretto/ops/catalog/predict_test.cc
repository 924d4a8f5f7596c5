// What a user would lose: `stretto predict` for every operator on 1 to 8 GPUs. The floors are
// computed here from the shapes alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <vector>

#include "stretto/base/test_seed.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/predict/prediction.h"

namespace stretto {
namespace {

predict::Prediction predict_op(const char* op, const OpShape& shape, const predict::Machine& m,
                               std::shared_ptr<const Program>& keep) {
  const OperatorInfo& info = *find_operator(op);
  Lowered program = lower(info.program(shape));
  keep = program.shared();
  predict::TimetableOptions plan;
  if (info.tables) plan.tables = info.tables(shape);
  return predict::predict(program, m, {.timetable = plan});
}

TEST(PredictCatalog, EveryOperatorEndsAndKeepsItsFloors) {
  predict::Machine machine = predict::find_machine("h200x8");
  const std::vector<int> kRanks = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const OperatorInfo& op : catalog()) {
    for (int p : drawn_of(fmt::format("predict {}", op.name), kRanks, 4)) {
      for (OpShape shape : op.shapes(p)) {
        for (Target target : {Target::kCpu, Target::kCuda}) {
          shape.target = target;
          SCOPED_TRACE(testing::Message() << op.name << " P=" << p << " m=" << shape.m);
          std::shared_ptr<const Program> program;
          predict::Prediction got = predict_op(op.name, shape, machine, program);
          EXPECT_GE(got.time_ms, machine.graph_launch * 1e3);
          EXPECT_LT(got.time_ms, 100);
          EXPECT_LE(got.exposed_comm_ms, got.time_ms);
          if (p == 1) {
            EXPECT_EQ(got.exposed_comm_ms, 0);
          }
          EXPECT_GE(got.time_ms, got.floors.hbm_ms);
          EXPECT_GE(got.time_ms, got.floors.link_ms);
        }
      }
    }
  }
}

TEST(PredictCatalog, ProductsTakeAtLeastWhatTheirShapesNeed) {
  for (const char* op : {"gemm", "ag_gemm", "ag_gemm_push", "gemm_rs", "gemm_ar"}) {
    for (int p : {1, 2, 4}) {
      OpShape shape{.world_size = p,
                    .m = 2048,
                    .n = 4096,
                    .k = 4096,
                    .dtype = DType::kBF16,
                    .target = Target::kCuda};
      SCOPED_TRACE(testing::Message() << op << " P=" << p);
      predict::Machine m = predict::find_machine("h200x4");
      std::shared_ptr<const Program> program;
      double time = predict_op(op, shape, m, program).time_ms;
      double split = op == std::string("gemm") ? 1 : p;
      double flops = 2.0 * 2048 * 4096 * 4096 / split;
      EXPECT_GE(time, flops / 800e12 * 1e3);
      EXPECT_GE(time, 4096.0 * 4096 * 2 / split / 4.3e12 * 1e3);  // the weights
      // and not more than a poor kernel: a tenth of the peak, the link at a tenth of its rate
      EXPECT_LE(time, flops / 80e12 * 1e3 + (p > 1 ? 2048.0 * 4096 * 2 * 2 / 37e9 * 1e3 : 0) + 0.1);
    }
  }
}

TEST(PredictCatalog, LargestLayersAreQuick) {
  std::clock_t begin = std::clock();  // of this process, whatever else the machine does
  OpShape shape{.world_size = 4,
                .m = 8192,
                .n = 57344,
                .k = 8192,
                .dtype = DType::kBF16,
                .target = Target::kCuda};
  std::shared_ptr<const Program> program;
  predict::Prediction got =
      predict_op("ag_gemm_push", shape, predict::find_machine("h200x4"), program);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_EQ(got.bound_by, "tensor");
  EXPECT_LT(seconds, 10);  // 0.3 s alone on an idle core, release build
}

}  // namespace
}  // namespace stretto
