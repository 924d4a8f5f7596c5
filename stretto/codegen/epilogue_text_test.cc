// Epilogue warps as CUDA text. A user who loses this has products that store while the next one
// waits, or stores from slots that are not full, or not free, when they are used.
#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::epilogue_text_test {
namespace {

struct Sample {
  std::int64_t n = 512;
  DType c_dtype = DType::kBF16;
  std::int64_t bm = 128, bn = 256;
  int stages = 4, slots = 2, cluster = 1, stagger = 0;
  bool notifies = false, row_limit = false;
};

Program apart(const Sample& s) {
  ProgramBuilder p("apart", 1);
  auto a = p.input("a", DType::kBF16, {256, 1024});
  auto b = p.input("b", DType::kBF16, {s.n, 1024});
  auto c = p.output("c", s.c_dtype, {256, s.n});
  auto stored = p.signal("stored", 1);
  Resource sms =
      Resource::sms(4).pipelined(s.stages).clustered(s.cluster).staggered(s.stagger).with_epilogue(
          s.slots);
  p.role("gemm", sms, p.grid(c, s.bm, s.bn), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, s.bm, s.bn);
    p.loop(16, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * 64}, s.bm, 64)),
                p.load(b.tile({t.col, i * 64}, s.bn, 64)).T());
    });
    Slice to = c.tile({t.row, t.col}, s.bm, s.bn);
    p.store(s.row_limit ? to.until_row(250) : to, cast(acc, s.c_dtype));
    if (s.notifies) p.notify(stored[0], p.rank());
  });
  return p.finish();
}

TEST(EpilogueText, OneThreadBesideTheProducerStoresSlots) {
  GeneratedKernel kernel = generate(apart({.notifies = true}));
  EXPECT_EQ(kernel.launch.block, 384);  // a fourth warpgroup would have no registers
  expect_lines(kernel.source,
               {"using GemmStoresSlot = SmemTile<bf16, 128, 64, 128>;",
                "mbarrier_init(bar, 8);",      // every warp that fills
                "mbarrier_init(bar + 2, 1);",  // the thread that stores
                "// producer",
                "// epilogue",
                "threadIdx.x / 32 == 9 && elect_one()",
                "mbarrier_wait_acquire_cta(&full1[ring1.slot()], ring1.round());",
                "tma_store_3d(&p.maps[",
                "tma_store_commit();",
                "tma_store_wait_read<0>();",
                "mbarrier_arrive_release_cta(&empty1[freed1.slot()]);",
                "tma_store_wait<0>();",
                "add_release_sys(",
                "tma_store_wait<0>();",
                "// consumer",
                "register_budget_raise<240>();",
                "wgmma_wait<0>();",
                "mbarrier_wait_acquire_cta(&empty1[ring1.slot()], ring1.round() ^ 1);",
                "fill_columns<L4, 0>(GemmStoresSlot{",
                "fence_proxy_async_shared();",
                "__syncwarp();",
                "mbarrier_arrive_release_cta(&full1[ring1.slot()]);",
                "fill_columns<L4, 64>(GemmStoresSlot{"});
  EXPECT_EQ(kernel.source.find("store_tma<"), std::string::npos);
  expect_clean_build(kernel);
}

TEST(EpilogueText, ClustersOtherTypesAndStaggersCompile) {
  for (const Sample& s :
       {Sample{.bm = 256, .cluster = 2}, Sample{.c_dtype = DType::kF32, .bn = 128},
        Sample{.bn = 192, .slots = 4, .stagger = 2}}) {
    expect_clean_build(generate(apart(s)));
  }
}

// Where rows end within a slot, of which TMA knows nothing.
TEST(EpilogueText, TheThreadItselfStoresTheLastRows) {
  GeneratedKernel kernel = generate(apart({.row_limit = true}));
  EXPECT_EQ(kernel.launch.block, 384);
  expect_lines(kernel.source, {"// epilogue", "if (250 - (", ") >= 128) {", "tma_store_3d(&p.maps[",
                               "tma_store_commit();", "} else {", "store_slot<8>(s0, Box<bf16>{"});
  expect_clean_build(kernel);
}

// Rows of an odd size are nothing for TMA: the epilogue's threads load each slot and store it.
TEST(EpilogueText, ThreadsStoreWhatTmaCannotStore) {
  GeneratedKernel kernel = generate(apart({.n = 509, .bn = 128}));
  expect_lines(kernel.source,
               {"mbarrier_init(bar + 2, 4);", "// epilogue", "load_smem<L0>(v0, s0, team);",
                "store_box<L0", "mbarrier_arrive_release_cta(&empty1[freed1.slot()]);"});
  expect_clean_build(kernel);
}

// NVRTC would refuse them, in words about registers of PTX.
TEST(EpilogueText, AFourthWarpgroupLeavesNoRegistersForTheWidestProducts) {
  expect_clean_build(generate(apart({.n = 509, .bn = 192})));
  try {
    generate(apart({.n = 509}));
    FAIL() << "products of 256 columns";
  } catch (const UserError& e) {
    std::string what = e.what();
    EXPECT_NE(what.find("cannot have store_slots = 2"), std::string::npos) << what;
    EXPECT_NE(what.find("products of 256 columns have no registers"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace stretto::epilogue_text_test
