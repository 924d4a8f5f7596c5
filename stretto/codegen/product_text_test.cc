// Products as CUDA text that compiles cleanly. A user who loses this has, say, fp8 layers
// that run on CPU ranks and not on GPUs.
#include <gtest/gtest.h>

#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/column_dot.h"
#include "stretto/lang/program_builder.h"

namespace stretto::product_text_test {
namespace {

// c = a * b^T of fp8 factors with a scale for each row, and block of columns, of every 128 of k.
Program scaled_gemm(std::int64_t bm, std::int64_t bn, int num_stages, int cluster,
                    ProductOrder order = ProductOrder::kAhead) {
  constexpr std::int64_t kSize = 512, kBlock = 128;
  ProgramBuilder p("scaled_gemm", 1);
  auto a = p.input("a", DType::kF8E4M3, {kSize, kSize});
  auto b = p.input("b", DType::kF8E4M3, {kSize, kSize});
  auto scale_a = p.input("scale_a", DType::kF32, {kSize, kSize / kBlock});
  auto scale_b = p.input("scale_b", DType::kF32, {kSize / kBlock, kSize / kBlock});
  auto c = p.output("c", DType::kBF16, {kSize, kSize});
  Resource sms = Resource::sms(4).pipelined(num_stages);
  if (num_stages > 0) sms = sms.clustered(cluster).multiplying(order);
  p.role("gemm", sms, p.grid(c, bm, bn), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, bm, bn);
    p.loop(kSize / kBlock, [&](const Index& i) {
      Value of_rows = p.load(scale_a.tile({t.row, i}, bm, 1));
      Value of_cols = broadcast(p.load(scale_b.tile({t.col / kBlock, i}, 1, 1)), 1, bn);
      Value rows = p.load(a.tile({t.row, i * kBlock}, bm, kBlock));
      Value weights = p.load(b.tile({t.col, i * kBlock}, bn, kBlock)).T();
      acc = dot_scaled(acc, rows, weights, {of_rows, of_cols});
    });
    p.store(c.tile({t.row, t.col}, bm, bn), cast(acc, DType::kBF16));
  });
  return p.finish();
}

TEST(ProductText, ScaledProductsHaveAnAccumulatorOfTheirOwnAndTheNextIsIssuedBeforeItIsRead) {
  for (int cluster : {1, 2}) {
    GeneratedKernel kernel = generate(scaled_gemm(128 * cluster, 128, 6, cluster));
    expect_lines(kernel.source, {"struct Wgmma<f8e4m3, 128>",
                                 "SmemColumn<float, 128, 4>",
                                 "SmemTile<f8e4m3, 128, 128, 128>",
                                 "tma_load_3d",
                                 "// by threads: a vector",
                                 "fill_slot<4, true, 96>(",
                                 "fill_slot<4, true, 96>(",
                                 "mbarrier_arrive_after_copies(&full0[ring0.slot()]);",
                                 "// consumer",
                                 "mbarrier_wait_acquire_cta(&full1",
                                 "dot_async<128, 128, true>(",
                                 "mbarrier_wait_acquire_cta(&full1",
                                 "dot_async<128, 128, true>(",
                                 "mbarrier_wait_acquire_cta(&full0",
                                 "load_smem<",
                                 "load_smem<",
                                 "wgmma_wait<1>();",
                                 "&empty1[",
                                 "Mul()",
                                 "Add()",
                                 "&empty0[",
                                 "dot_async<128, 128, true>(",
                                 "wgmma_wait<0>();",
                                 "Add()",
                                 "store_tma<bf16, 128, 64, 1>("});
    expect_clean_build(kernel);
  }
}

// c = a * b^T over blocks of k, in one loop, or in rounds of two of which there may be none; a is
// one slot.
Program rounds_of_products(bool in_rounds) {
  constexpr std::int64_t kSize = 128, kBlocks = 4;
  ProgramBuilder p("rounds_of_products", 1);
  Index rounds = p.extent("rounds", kBlocks / 2);
  auto a = p.input("a", DType::kBF16, {kSize, 64});
  auto b = p.input("b", DType::kBF16, {kSize, kBlocks * 64});
  auto c = p.output("c", DType::kBF16, {kSize, kSize});
  p.role("multiply", Resource::sms(1).pipelined(2), p.grid(c, 128, 128), [&](const Tile& t) {
    Value sum = p.zeros(DType::kF32, 128, 128), rows = p.load(a.tile({0, 0}, 128, 64));
    auto multiply = [&](const Index& block) {
      sum = dot(sum, rows, p.load(b.tile({t.col, block * 64}, 128, 64)).T());
    };
    if (in_rounds) {
      p.loop(rounds,
             [&](const Index& r) { p.loop(2, [&](const Index& i) { multiply(r * 2 + i); }); });
    } else {
      p.loop(rounds * 2, multiply);
    }
    p.store(c.tile({t.row, t.col}, 128, 128), cast(sum, DType::kBF16));
  });
  return p.finish();
}

// Where no product makes a warp's lanes meet between the wait for a slot and its release, a lane
// that is late would wait for a phase that has passed: the slot is filled again without it.
TEST(ProductText, LanesMeetBeforeOneOfThemReleasesASlotForAll) {
  auto consumer = [](bool in_rounds) {
    std::string source = generate(rounds_of_products(in_rounds)).source;
    return source.substr(source.find("// consumer"));
  };
  std::string in_rounds = consumer(true);
  expect_lines(in_rounds, {"mbarrier_wait_acquire_cta(&full0", "for (int", "for (int",
                           "wgmma_wait<0>", "mbarrier_arrive_release_cta(&empty1", "__syncwarp();",
                           "if (team.tid % 32 == 0) mbarrier_arrive_release_cta(&empty0"});
  EXPECT_LT(in_rounds.find("mbarrier_arrive_release_cta(&empty1"), in_rounds.find("__syncwarp();"));
  EXPECT_EQ(consumer(false).find("__syncwarp();"), std::string::npos);
}

// Rows of tiles that a table fills, as of a mixture of experts.
Program half_empty(std::int64_t bm, int cluster) {
  constexpr std::int64_t kSize = 512;
  ProgramBuilder p("half_empty", 1);
  auto counts = p.table("counts", {kSize / bm}, {ContractKind::kRange, 0, bm + 1});
  auto a = p.input("a", DType::kBF16, {kSize, kSize}),
       b = p.input("b", DType::kBF16, {kSize, kSize});
  auto c = p.output("c", DType::kBF16, {kSize, kSize});
  Resource sms = Resource::sms(4).pipelined(4).clustered(cluster);
  p.role("gemm", sms, p.grid(c, bm, 128), [&](const Tile& t) {
    Index filled = p.read(counts, {t.m});
    Value acc = p.zeros(DType::kF32, bm, 128);
    p.loop(kSize / 64, [&](const Index& i) {
      Value rows = p.load(a.tile({t.row, i * 64}, bm, 64));
      acc = dot(acc, rows, p.load(b.tile({t.col, i * 64}, 128, 64)).T(), filled);
    });
    p.store(c.tile({t.row, t.col}, bm, 128), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// The same with the rows as the product's columns.
Program half_empty_columns(std::int64_t bm) {
  constexpr std::int64_t kSize = 512;
  ProgramBuilder p("half_empty", 1);
  auto counts = p.table("counts", {kSize / bm}, {ContractKind::kRange, 0, bm + 1});
  auto a = p.input("a", DType::kBF16, {kSize, kSize}),
       b = p.input("b", DType::kBF16, {kSize, kSize});
  auto c = p.output("c", DType::kBF16, {kSize, kSize});
  p.role("gemm", Resource::sms(4).pipelined(4), p.grid(c, bm, 128), [&](const Tile& t) {
    Index filled = p.read(counts, {t.m});
    Value acc = p.zeros(DType::kF32, 128, bm);
    p.loop(kSize / 64, [&](const Index& i) {
      Value rows = p.load(a.tile({t.row, i * 64}, bm, 64));
      acc = dot_of_columns(acc, p.load(b.tile({t.col, i * 64}, 128, 64)), rows.T(), filled);
    });
    p.store(c.tile({t.row, t.col}, bm, 128), cast(acc, DType::kBF16).T());
  });
  return p.finish();
}

TEST(ProductText, PartsWithoutColumnsAreNotMultiplied) {
  GeneratedKernel kernel = generate(half_empty_columns(128));
  // Once for all steps, and every width of instruction that may be asked for.
  expect_lines(kernel.source, {"struct Wgmma<bf16, 32>", "struct Wgmma<bf16, 64>",
                               "struct Wgmma<bf16, 96>", "struct Wgmma<bf16, 128>",
                               "const int parts0 = (int(uniform(u32(", "+ 31) / 32;", "for (",
                               "dot_async_of_parts<128, 64, 4>(", "parts0, origin);"});
  expect_clean_build(kernel);
  EXPECT_EQ(generate(half_empty_columns(16)).source.find("dot_async_of_parts"), std::string::npos);
}

TEST(ProductText, AWarpgroupWithoutRowsDoesNotMultiply) {
  GeneratedKernel kernel = generate(half_empty(128, 1));
  std::size_t products = 0, guarded = 0;
  for (std::size_t at = 0; (at = kernel.source.find(" dot_async<", at)) != std::string::npos;
       ++at) {
    ++products;
    guarded += kernel.source.rfind("if (any_rows0)", at) + 14 == at;
  }
  EXPECT_GT(products, 0u);
  EXPECT_EQ(guarded, products) << kernel.source;
  // Once for all steps, of a value that the assembler knows to be the same for a whole warp: of
  // another it would end each product before the next begins.
  expect_lines(kernel.source,
               {"const bool any_rows0 = int(uniform(u32(", "> int(origin.group) * 64;", "for ("});
  EXPECT_EQ(kernel.source.find("uniform(", kernel.source.find("any_rows0 = int(uniform(") + 20),
            std::string::npos);
  expect_clean_build(kernel);
  for (const Program& whole : {half_empty(64, 1), half_empty(256, 2)}) {
    EXPECT_EQ(generate(whole).source.find("any_rows"), std::string::npos);
  }
}

TEST(ProductText, WarpgroupsInTurnHaveOneProductUnderWayEach) {
  GeneratedKernel kernel = generate(scaled_gemm(256, 128, 6, 2, ProductOrder::kInTurn));
  expect_lines(
      kernel.source,
      {"pass_turn<2>(team);", "mbarrier_wait_acquire_cta(&full1", "take_turn(team);",
       "dot_async<128, 128, true>(", "pass_turn<2>(team);", "mbarrier_wait_acquire_cta(&full0",
       "load_smem<", "load_smem<", "wgmma_wait<0>();", "&empty1[", "Mul()", "Add()"});
  EXPECT_EQ(kernel.source.find("wgmma_wait<1>();"), std::string::npos);
  expect_clean_build(kernel);
}

// The block's own rows, whose reads end before its slots are given back; shared columns go to the
// tensor core alone.
TEST(ProductText, ThreadsOfAClusterReadSlotsOfTheirOwnRows) {
  ProgramBuilder p("weighed", 1);
  auto a = p.input("a", DType::kBF16, {512, 512}), b = p.input("b", DType::kBF16, {512, 512});
  auto c = p.output("c", DType::kBF16, {512, 512});
  Resource sms = Resource::sms(4).pipelined(4).clustered(2).multiplying(ProductOrder::kAwaited);
  p.role("gemm", sms, p.grid(c, 256, 128), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 256, 128);
    auto rows = [&](const Index& i) { return p.load(a.tile({t.row, i * 64}, 256, 64)); };
    auto cols = [&](const Index& i) { return p.load(b.tile({t.col, i * 64}, 128, 64)).T(); };
    p.loop(6, [&](const Index& i) { acc = dot(acc, rows(i), cols(i)); });
    p.loop(6, 8, [&](const Index& i) {
      Value twice = rows(i);
      acc = dot(acc, twice + twice, cols(i));
    });
    p.store(c.tile({t.row, t.col}, 256, 128), cast(acc, DType::kBF16));
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source,
               {"SmemTile<bf16, 128, 64, 128>", "mbarrier_wait_acquire_cta(&empty", "tma_load_3d(",
                "mbarrier_wait_relaxed_cluster(&empty", "tma_load_3d_multicast(", "load_smem<",
                "__syncwarp();", "fence_acq_rel_cta();", "mbarrier_arrive_relaxed_cluster(",
                "dot_async<128, 64, false>("});
  EXPECT_EQ(kernel.source.find("fence_acq_rel_cluster();"), std::string::npos)
      << "which costs a producer microseconds";
  expect_clean_build(kernel);
}

// As online softmax does, whose factors are mostly one.
TEST(ProductText, SumsOfProductsAreScaledWhereAFactorIsNotOne) {
  constexpr std::int64_t kSize = 128;
  ProgramBuilder p("rescaled", 1);
  auto a = p.input("a", DType::kBF16, {kSize, kSize}), b = p.input("b", DType::kBF16, {512, kSize}),
       v = p.input("v", DType::kBF16, {512, kSize});
  auto c = p.output("c", DType::kBF16, {kSize, kSize});
  p.role("attend", Resource::sms(4).pipelined(2), p.grid(c, kSize, kSize), [&](const Tile& t) {
    Value left = p.load(a.tile({t.row, 0}, kSize, kSize));
    Value acc = p.zeros(DType::kF32, kSize, kSize);
    p.loop(512 / kSize, [&](const Index& i) {
      Value scores = dot(p.zeros(DType::kF32, kSize, kSize), left,
                         p.load(b.tile({i * kSize, 0}, kSize, kSize)).T());
      acc = dot(acc * row_max(scores), cast(scores, DType::kBF16),
                p.load(v.tile({i * kSize, 0}, kSize, kSize)));
    });
    p.store(c.tile({t.row, t.col}, kSize, kSize), cast(acc, DType::kBF16));
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source, {"reduce_columns<", "rescale(v", "dot_async<"});
  expect_clean_build(kernel);
}

// Of two products that overlap the second's factor is made while the one before is under way, in
// either of two sets of registers.
TEST(ProductText, FactorsAreHeldBesideTheProductBefore) {
  constexpr std::int64_t kSize = 128;
  ProgramBuilder p("chained", 1);
  auto a = p.input("a", DType::kBF16, {kSize, kSize}), b = p.input("b", DType::kBF16, {512, kSize}),
       v = p.input("v", DType::kBF16, {512, kSize});
  auto c = p.output("c", DType::kBF16, {kSize, kSize});
  p.role("attend", Resource::sms(4).pipelined(2), p.grid(c, kSize, kSize), [&](const Tile& t) {
    Value left = p.load(a.tile({t.row, 0}, kSize, kSize));
    Value acc = p.zeros(DType::kF32, kSize, kSize);
    p.loop(512 / kSize, [&](const Index& i) {
      Value scores = dot(p.zeros(DType::kF32, kSize, kSize), left,
                         p.load(b.tile({i * kSize, 0}, kSize, kSize)).T());
      acc =
          dot(acc, cast(exp2(scores), DType::kBF16), p.load(v.tile({i * kSize, 0}, kSize, kSize)));
    });
    p.store(c.tile({t.row, t.col}, kSize, kSize), cast(acc, DType::kBF16));
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source, {"take_turn(team);", "pass_turn<2>(team);", "wgmma_wait<1>();",
                               "hold(v", "wgmma_wait<0>();", "take_turn(team);", "hold(v"});
  expect_clean_build(kernel);
}

// Each block of a cluster has all rows of what is multicast, and clears its own copy.
TEST(ProductText, AClusterClearsTheRowsThatDoNotExist) {
  ProgramBuilder p("limited", 1);
  auto a = p.input("a", DType::kBF16, {256, 256}), b = p.input("b", DType::kBF16, {128, 256});
  auto c = p.output("c", DType::kBF16, {256, 128});
  Resource sms = Resource::sms(2).pipelined(3).clustered(2);
  p.role("gemm", sms, p.grid(c, 256, 128), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 256, 128);
    p.loop(4, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * 64}, 256, 64)),
                p.load(b.tile({t.col, i * 64}, 128, 64).until_row(125)).T());
    });
    p.store(c.tile({t.row, t.col}, 256, 128), cast(acc, DType::kBF16));
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source,
               {"tma_load_3d_multicast(", "clear_rows(", "fence_proxy_async_shared();",
                "fence_acq_rel_cluster();", "named_barrier_sync(", "dot_async<"});
  expect_clean_build(kernel);
}

TEST(ProductText, ScaledProductsWithoutStages) {
  GeneratedKernel kernel = generate(scaled_gemm(32, 32, 0, 1));
  expect_lines(kernel.source, {"fill(part, 0.f);", "dot_simt<", "map(part, part,"});
  expect_clean_build(kernel);
}

// c = a * b^T of fp8 factors in steps of `bk`.
Program plain_gemm(std::int64_t bm, std::int64_t bn, std::int64_t bk, int num_stages) {
  constexpr std::int64_t kSize = 512;
  ProgramBuilder p("plain_gemm", 1);
  auto a = p.input("a", DType::kF8E4M3, {kSize, kSize});
  auto b = p.input("b", DType::kF8E4M3, {kSize, kSize});
  auto c = p.output("c", DType::kBF16, {kSize, kSize});
  p.role("gemm", Resource::sms(4).pipelined(num_stages), p.grid(c, bm, bn), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, bm, bn);
    p.loop(ceil_div(kSize, bk), [&](const Index& i) {
      Value rows = p.load(a.tile({t.row, i * bk}, bm, bk));
      acc = dot(acc, rows, p.load(b.tile({t.col, i * bk}, bn, bk)).T());
    });
    p.store(c.tile({t.row, t.col}, bm, bn), cast(acc, DType::kBF16));
  });
  return p.finish();
}

// The tensor core takes bytes only along the summed dimension, in steps of 32; other forms are the
// threads' work.
TEST(ProductText, Bytes) {
  GeneratedKernel kernel = generate(plain_gemm(128, 256, 128, 4));
  expect_lines(kernel.source, {"struct Wgmma<f8e4m3, 256>", "SmemTile<f8e4m3, 128, 128, 128>",
                               "SmemTile<f8e4m3, 256, 128, 128>", "&full0[ring0.slot()], 49152);",
                               "dot_async<256, 128, false>("});
  expect_clean_build(kernel);
  kernel = generate(plain_gemm(64, 64, 48, 2));
  expect_lines(kernel.source, {"dot_simt<"});
  expect_clean_build(kernel);
}

// A bulk store may not begin before its tensor, which on GPUs is an illegal instruction; a load
// may.
TEST(ProductText, StoresThatMayBeginBeforeTheTensorLookFirst) {
  for (int store_slots : {0, 2}) {
    ProgramBuilder p("shifted", 1);
    auto a = p.input("a", DType::kBF16, {128, 256}), b = p.input("b", DType::kBF16, {128, 256});
    auto c = p.output("c", DType::kBF16, {112, 128});
    Resource sms = Resource::sms(2).pipelined(3).with_epilogue(store_slots);
    p.role("gemm", sms, p.grid(128, 128, 64, 128), [&](const Tile& t) {
      Value acc = p.zeros(DType::kF32, 64, 128);
      p.loop(4, [&](const Index& i) {
        acc = dot(acc, p.load(a.tile({t.row, i * 64}, 64, 64)),
                  p.load(b.tile({t.col, i * 64}, 128, 64)).T());
      });
      p.store(c.tile({t.row - 16, t.col}, 64, 128), cast(acc, DType::kBF16));
    });
    GeneratedKernel kernel = generate(p.finish());
    if (store_slots == 0) {
      expect_lines(kernel.source, {"if (((", " - 16) >= 0) {", "store_tma<bf16, 128", "} else {",
                                   "store_box<", "max(0, -"});
    } else {
      EXPECT_EQ(kernel.source.find("tma_store_3d"), std::string::npos) << kernel.source;
    }
    expect_clean_build(kernel);
  }
}

// A product's tile of `cols` columns, stored here or on another rank.
Program stored(std::int64_t cols, bool elsewhere) {
  ProgramBuilder p("stored", 2);
  auto a = p.input("a", DType::kBF16, {256, 256}), b = p.input("b", DType::kBF16, {512, 256});
  auto c = p.output("c", DType::kBF16, {256, 512});
  auto part = p.buffer("part", DType::kBF16, {256, 512}, {.space = Space::kSymmetric});
  auto ready = p.signal("ready");
  if (elsewhere) p.on_start([&] { p.notify(ready, (p.rank() + 1) % 2); });
  p.role("gemm", Resource::sms(2).pipelined(3), p.grid(256, 512, 128, cols), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 128, cols);
    p.loop(4, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.row, i * 64}, 128, 64)),
                p.load(b.tile({t.col, i * 64}, cols, 64)).T());
    });
    Value packed = cast(acc, DType::kBF16);
    if (elsewhere) {
      p.wait(ready, 1);
      p.store(part.tile({t.row, t.col}, 128, cols).on((p.rank() + 1) % 2), packed);
    } else {
      p.store(c.tile({t.row, t.col}, 128, cols), packed);
    }
  });
  return p.finish();
}

// Blocks of 64 columns, of which the last begins earlier; over the link no column goes twice.
TEST(ProductText, StoresOfOddWidthsOverlapExceptOverTheLink) {
  struct Row {
    std::int64_t cols;
    bool elsewhere;
    const char* store;
  };
  for (const Row& row :
       {Row{160, false, "store_tma<bf16, 160, 64>("}, Row{168, false, "store_tma<bf16, 168, 64>("},
        Row{176, false, "store_tma<bf16, 176, 64>("}, Row{48, false, "store_tma<bf16, 48, 16>("},
        Row{160, true, "store_tma<bf16, 160, 32>("}, Row{176, true, "store_tma<bf16, 176, 16>("},
        Row{168, true, "store_box<"}}) {
    GeneratedKernel kernel = generate(stored(row.cols, row.elsewhere));
    expect_lines(kernel.source, {row.store});
    expect_clean_build(kernel);
  }
}

// What attention multiplies its values by, and adds up.
Program weighted(DType dtype, std::int64_t dim) {
  ProgramBuilder p("weighted", 1);
  auto x = p.input("x", DType::kF32, {64, 256});
  auto v = p.input("v", dtype, {256, dim});
  auto y = p.output("y", DType::kF32, {64, dim + 8});
  p.role("weigh", Resource::sms(1).pipelined(2), p.grid(y, 64, dim + 8), [&](const Tile&) {
    Value acc = p.zeros(DType::kF32, 64, dim + 8);
    Value weights = cast(p.load(x.tile({0, 0}, 64, 64)), dtype);
    p.loop(4, [&](const Index& k) {
      acc = dot_and_row_sums(acc, weights, p.load(v.tile({k * 64, 0}, 64, dim)));
    });
    p.store(y.tile({0, 0}, 64, dim + 8), acc);
  });
  return p.finish();
}

TEST(ProductText, TheTensorCoreAddsUpRows) {
  GeneratedKernel kernel = generate(weighted(DType::kBF16, 64));
  expect_lines(kernel.source, {"struct Wgmma<bf16, 72>", "fill_ones<bf16>(smem + ",
                               "__syncthreads();", "dot_async_with_sums<64, 64, false>("});
  expect_clean_build(kernel);
  // Chunks of columns before the last one are products of their own.
  kernel = generate(weighted(DType::kF16, 192));
  expect_lines(kernel.source, {"struct Wgmma<f16, 72>", "struct Wgmma<f16, 128>", "fill_ones<f16>(",
                               "dot_async_with_sums<192, 64, false>("});
  expect_clean_build(kernel);
  kernel = generate(weighted(DType::kF32, 64));
  EXPECT_EQ(kernel.source.find("fill_ones"), std::string::npos);
  expect_lines(kernel.source, {"dot_simt<L", ", 64, 64>("});
  expect_clean_build(kernel);
}

}  // namespace
}  // namespace stretto::product_text_test
