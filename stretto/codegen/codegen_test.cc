// Every construct of the language as CUDA text that compiles cleanly for Hopper. A user who loses
// this has a program that runs on CPU ranks and not on GPUs, or is told so without the line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <regex>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"
#include "stretto/runtime/cuda/nvrtc.h"

namespace stretto::codegen_test {
namespace {

using Body = std::function<void(ProgramBuilder&, const Tile&)>;

// One role of one worker over `body`.
Program one_role(const std::function<Body(ProgramBuilder&)>& declare, int world = 1) {
  ProgramBuilder p("sample", world);
  Body body = declare(p);
  p.role("work", Resource::sms(1), p.range(2), [&](const Tile& t) { body(p, t); });
  return p.finish();
}

struct GemmSample {
  std::int64_t m = 256, n = 512, k = 1024;
  DType dtype = DType::kBF16;
  std::int64_t bm = 128, bn = 256, bk = 64;
  int num_stages = 4;
  int cluster = 1;
  int stagger = 0;
  bool row_limit = false, col_limit = false;
};

Program gemm(const GemmSample& s) {
  ProgramBuilder p("gemm", 1);
  auto a = p.input("a", s.dtype, {s.m, s.k});
  auto b = p.input("b", s.dtype, {s.n, s.k});
  auto c = p.output("c", s.dtype, {s.m, s.n});
  Resource sms = Resource::sms(4).pipelined(s.num_stages).clustered(s.cluster).staggered(s.stagger);
  p.role("gemm", sms, p.grid(c, s.bm, s.bn), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, s.bm, s.bn);
    p.loop(ceil_div(s.k, s.bk), [&](const Index& i) {
      Slice rows = a.tile({t.row, i * s.bk}, s.bm, s.bk);
      if (s.row_limit) rows = rows.until_row(s.m - 3);
      if (s.col_limit) rows = rows.until_col(s.k - 5);
      Value left = p.load(rows), right = p.load(b.tile({t.col, i * s.bk}, s.bn, s.bk));
      acc = dot(acc, left, right.T());
    });
    p.store(c.tile({t.row, t.col}, s.bm, s.bn), cast(acc, s.dtype));
  });
  return p.finish();
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& e) {
    return e.what();
  }
  return "not refused";
}

// "file.cc:LINE: role 'NAME' on the GPU: ..."
void expect_refusal(const std::string& said, const std::string& role, const std::string& words) {
  EXPECT_TRUE(std::regex_search(said, std::regex("^[^ ]*codegen_test\\.cc:[0-9]+: role '" + role +
                                                 "' on the GPU: .*" + words)))
      << said;
}

TEST(Codegen, SaysWhereThereIsNoCompiler) {
  if (!cuda::has_nvrtc()) GTEST_SKIP() << "no NVRTC: texts are checked, but not compiled";
}

// Each warpgroup's last steps are a turn, so that one stores while the next multiplies. One
// warpgroup has nobody to wait for.
TEST(Codegen, StaggeredWarpgroupsEndTheirLoopsInTurn) {
  GeneratedKernel kernel = generate(gemm({.stagger = 2}));
  expect_lines(kernel.source,
               {"if (team.tid / 128 == 1) pass_turn<2>(team);", "const int num_tiles",
                "= max(0, 16 - 2);", "for (int", "== alone_", "take_turn(team);",
                "mbarrier_wait_acquire_cta(&full0", "dot_async<256, 64", "wgmma_wait<1>();",
                "pass_turn<2>(team);", "wgmma_wait<0>();", "store_tma<bf16, 256"});
  expect_clean_build(kernel);
  EXPECT_NE(refusal([] { generate(gemm({.bm = 64, .stagger = 2})); }).find("stagger = 2"),
            std::string::npos);
}

TEST(Codegen, PipelinedProductIsTmaAndWgmma) {
  GeneratedKernel kernel = generate(gemm({}));
  EXPECT_EQ(kernel.launch.grid, 4);
  EXPECT_EQ(kernel.launch.block, 384);
  EXPECT_EQ(kernel.launch.maps.size(), 3u);
  EXPECT_TRUE(kernel.launch.engines.on_sms.empty());
  expect_lines(kernel.source,
               {"// gemm: 4 blocks of 384 threads",
                "struct Wgmma<bf16, 256>",
                "using GemmASlot = SmemTile<bf16, 128, 64, 128>;",
                "using GemmBSlot = SmemTile<bf16, 256, 64, 128>;",
                "__launch_bounds__(384, 1)",
                "mbarrier_init_fence_cluster();",
                "__syncthreads();",
                "// producer",
                "register_budget_lower<24>();",
                "elect_one()",
                "mbarrier_wait_acquire_cta(&empty0[ring0.slot()], ring0.round() ^ 1);",
                "mbarrier_arrive_expect_tx(&full0[ring0.slot()], 49152);",
                "tma_load_3d(",
                "tma_load_3d(",
                "// consumer",
                "register_budget_raise<240>();",
                "mbarrier_wait_acquire_cta(&full0[0], round0);",
                "dot_async<256, 64",
                "wgmma_wait<1>();",
                "mbarrier_arrive_release_cta(&empty0[3]);",
                "wgmma_wait<0>();",
                "settle(v0);",
                "store_tma<bf16, 256",
                "(&p.maps[2]",
                "tma_store_wait<0>();"});
  expect_clean_build(kernel);
}

TEST(Codegen, RowsOfOddBytesAreFilledByThreads) {
  GeneratedKernel kernel = generate(gemm({.m = 37, .n = 29, .k = 35}));
  EXPECT_TRUE(kernel.launch.maps.empty());
  expect_lines(
      kernel.source,
      {"// producer", "register_budget_lower<72>();",
       "mbarrier_wait_acquire_cta(&empty0[ring0.slot()], ring0.round() ^ 1);",
       "// by threads: rows that are not multiples of 16 bytes",
       "fill_slot<1, true, 128>(GemmASlot{", "mbarrier_arrive_release_cta(&full0[ring0.slot()]);",
       "fill_slot<1, true, 128>(GemmBSlot{", "mbarrier_arrive_release_cta(&full1[ring1.slot()]);",
       "// consumer", "fence_proxy_async_shared();", "dot_async<"});
  EXPECT_EQ(kernel.source.find("tma_load_3d"), std::string::npos);
  expect_clean_build(kernel);
}

// Each in warps of their own: what TMA loads does not wait for what threads copy.
TEST(Codegen, OneFactorByTmaTheOtherByThreads) {
  GeneratedKernel kernel = generate(gemm({.col_limit = true}));
  expect_lines(kernel.source,
               {"// producer", "if (threadIdx.x / 32 == 8 && elect_one()) {",
                "mbarrier_arrive_expect_tx(&full1", "tma_load_3d(", "if (threadIdx.x / 32 != 8) {",
                "const Team team{threadIdx.x - 288, 1};", "// by threads: a column limit",
                "fill_slot<8, false, 96>(GemmASlot{",
                "mbarrier_arrive_after_copies(&full0[ring0.slot()]);", "// consumer"});
  expect_clean_build(kernel);
}

TEST(Codegen, RowsPastALimitAreCleared) {
  GeneratedKernel kernel = generate(gemm({.row_limit = true}));
  expect_lines(kernel.source, {"tma_load_3d(", "clear_rows(s", "fence_proxy_async_shared();",
                               "named_barrier_sync(team.barrier, 256);", "dot_async<"});
  expect_clean_build(kernel);
}

TEST(Codegen, ClusterSharesLoads) {
  GeneratedKernel kernel = generate(gemm({.cluster = 2}));
  EXPECT_EQ(kernel.launch.cluster, 2);
  expect_lines(kernel.source, {"tma_load_3d_multicast(", "cluster_wait_acquire();"});
  expect_clean_build(kernel);
}

TEST(Codegen, PlainProducts) {
  GeneratedKernel kernel = generate(gemm({.dtype = DType::kF32, .bm = 64, .bn = 64, .bk = 32}));
  expect_lines(kernel.source, {"dot_simt<"});
  expect_clean_build(kernel);
  expect_clean_build(generate(gemm({.bm = 64, .bn = 64, .num_stages = 0})));
  expect_clean_build(
      generate(gemm({.m = 21, .k = 51, .dtype = DType::kF16, .bm = 24, .bn = 40, .bk = 17})));
}

TEST(Codegen, ReductionsTransposesAndElementwise) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    GeneratedKernel kernel = generate(one_role([&](ProgramBuilder& p) -> Body {
      auto x = p.input("x", dtype, {2, 48, 33});
      auto rows = p.output("rows", DType::kF32, {2, 48, 1});
      auto cols = p.output("cols", DType::kF32, {2, 1, 33});
      auto flipped = p.output("flipped", dtype, {2, 33, 48});
      auto where_max = p.output("where_max", DType::kI32, {2, 48, 1});
      return [=](ProgramBuilder& q, const Tile& t) {
        Value v = q.load(x.tile({t.index, 0, 0}, 48, 33));
        Value wide = cast(v, DType::kF32);
        Value masked = where(q.iota_cols(0, 33) < q.iota_rows(t.index, 48), wide, exp(wide));
        q.store(rows.tile({t.index, 0, 0}, 48, 1), row_sum(silu(masked)));
        q.store(cols.tile({t.index, 0, 0}, 1, 33), col_sum(masked) + col_max(wide));
        Value place = row_argmax(wide) + q.iota_cols(0, 33);  // of integers
        q.store(where_max.tile({t.index, 0, 0}, 48, 1), row_sum(place + col_max(place)));
        q.store(flipped.tile({t.index, 0, 0}, 33, 48), v.T());
      };
    }));
    expect_lines(kernel.source, {"where(", "reduce_columns<", "reduce_rows<", "arg_max_columns<",
                                 "store_smem<", "load_smem_transposed<"});
    expect_clean_build(kernel);
  }
}

TEST(Codegen, PickedRowsSeeTheWholeTensor) {
  GeneratedKernel kernel = generate(one_role([](ProgramBuilder& p) -> Body {
    auto x = p.input("x", DType::kBF16, {1000, 64});
    auto chosen = p.input("chosen", DType::kI32, {2, 8, 1});
    auto y = p.output("y", DType::kBF16, {16, 64});
    return [=](ProgramBuilder& q, const Tile& t) {
      Value idx = q.load(chosen.tile({t.index, 0, 0}, 8, 1));
      q.store(y.tile({t.index * 8, 0}, 8, 64), q.load_rows(x.tile({0, 0}, 8, 64), idx));
    };
  }));
  expect_lines(kernel.source, {"load_rows<", "64, 1, 1000 - 0, "});
  expect_clean_build(kernel);
}

TEST(Codegen, RowsBeforeTheTensorAreMasked) {
  auto shifted = [](std::int64_t by) {
    return generate(one_role([by](ProgramBuilder& p) -> Body {
      auto x = p.input("x", DType::kF32, {16, 32});
      auto y = p.output("y", DType::kF32, {16, 32});
      return [=](ProgramBuilder& q, const Tile& t) {
        q.store(y.tile({t.index * 8, 0}, 8, 32), q.load(x.tile({t.index * 8 - by, 0}, 8, 32)));
      };
    }));
  };
  expect_lines(shifted(3).source, {"load_box<", "max(0, -"});
  EXPECT_EQ(shifted(0).source.find("max(0, -"), std::string::npos);
  expect_clean_build(shifted(3));
}

// For measurements only: the text differs in one line.
TEST(Codegen, WaitsCanBeMadeWithoutTheWatchdog) {
  Program program = run_pipeline([] {
    ProgramBuilder p("waits", 2);
    auto ready = p.signal("ready");
    p.on_start([&] { p.notify(ready, 1 - p.rank()); });
    p.role("work", Resource::sms(1), p.range(1), [&](const Tile&) { p.wait(ready, 1 - p.rank()); });
    return p.finish();
  }());
  const std::string line = "#define STRETTO_WITHOUT_WATCHDOG\n";
  GeneratedKernel with = generate_kernel(program);
  GeneratedKernel without = generate_kernel(program, {.watchdog = false});
  EXPECT_EQ(with.source.find(line), std::string::npos);
  std::size_t at = without.source.find(line);
  ASSERT_NE(at, std::string::npos);
  EXPECT_LT(at, without.source.find("#include"));
  EXPECT_EQ(without.source.erase(at, line.size()), with.source);
  expect_clean_build(without);
}

TEST(Codegen, SignalsOrderWhatTheyPassOn) {
  GeneratedKernel kernel = generate(one_role(
      [](ProgramBuilder& p) -> Body {
        auto x = p.input("x", DType::kF32, {2, 256}, Space::kSymmetric);
        auto y = p.output("y", DType::kF32, {2, 256});
        auto ready = p.signal("ready");
        auto done = p.signal("done");
        p.on_start([&] { p.notify_all(ready); });
        p.on_end([&] { p.loop(2, [&](const Index& r) { p.wait(done[r], 2); }); });
        return [=](ProgramBuilder& q, const Tile& t) {
          Index peer = (q.rank() + 1) % 2;
          q.wait(ready, peer);
          q.copy(y.tile({t.index, 0}, 1, 256), x.on(peer).tile({t.index, 0}, 1, 256));
          q.worker_fence();
          q.notify_all(done);
        };
      },
      2));
  expect_lines(kernel.source,
               {"// on_start", "add_release_sys(", "if (blockIdx.x == 0) __syncthreads();",
                "wait_acquire_sys(", "named_barrier_sync(team.barrier, 256);", "copy_box<4>(",
                "fence_acq_rel_gpu();", "named_barrier_sync(team.barrier, 256);", "+= 256) {",
                "add_release_sys(", "// on_end", "+= 128) {", "wait_acquire_sys(",
                "count_relaxed_gpu(p.control + 32 + blockIdx.x, 1)"});
  EXPECT_EQ(kernel.launch.num_control_words, 32 + kernel.launch.grid);
  expect_clean_build(kernel);
}

// What on_end announces to other ranks holds for all blocks, so that the last of them announces it.
TEST(Codegen, AnOnEndThatNotifiesComesAfterAllBlocks) {
  ProgramBuilder p("sample", 2);
  auto y = p.output("y", DType::kF32, {2, 256});
  auto done = p.signal("done");
  p.role("work", Resource::sms(2), p.range(2), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 256), p.zeros(DType::kF32, 1, 256));
  });
  p.on_end([&] { p.notify_all(done); });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source, {"epoch = load_relaxed_sys(p.control);", "// role 'work'",
                               "last = finished ==", "if (last && threadIdx.x < 128) {  // on_end",
                               "epoch = now;", "store_relaxed_sys(p.control, now + 1)"});
  expect_clean_build(kernel);
}

// What on_start waits for must be there before any block of a role begins.
TEST(Codegen, RolesWaitForAnOnStartThatWaits) {
  ProgramBuilder p("sample", 2);
  auto y = p.output("y", DType::kF32, {2, 256});
  auto ready = p.signal("ready");
  p.on_start([&] {
    p.notify_all(ready);
    p.wait_all(ready);
  });
  p.role("work", Resource::sms(2), p.range(2), [&](const Tile& t) {
    p.store(y.tile({t.index, 0}, 1, 256), p.zeros(DType::kF32, 1, 256));
  });
  GeneratedKernel kernel = generate(p.finish());
  expect_lines(kernel.source, {"// on_start", "__syncthreads();", "fence_acq_rel_gpu();",
                               "store_relaxed_sys(p.control + 1, epoch + 1);",
                               "wait_acquire_sys(p.control + 1, epoch + 1,", "__syncthreads();",
                               "// role 'work'"});
  expect_clean_build(kernel);
}

TEST(Codegen, PacketsAndTables) {
  GeneratedKernel kernel = generate(one_role(
      [](ProgramBuilder& p) -> Body {
        auto x = p.input("x", DType::kF16, {8, 64});
        auto lengths = p.table("lengths", {2}, {ContractKind::kRange, 0, 9});
        auto y = p.output("y", DType::kF16, {8, 64});
        auto box = p.buffer("box", DType::kF16, {8, 64},
                            {.space = Space::kSymmetric, .num_slots = 2, .packet = true});
        return [=](ProgramBuilder& q, const Tile& t) {
          Index end = q.read(lengths, {t.index});
          auto part = [&](const TensorRef& tensor) { return tensor.tile({t.index * 4, 0}, 4, 64); };
          q.store_packet(part(box.on(1 - q.rank())), q.load(part(x).until_row(end)));
          q.store(part(y), q.load_packet(part(box)));
        };
      },
      2));
  expect_lines(kernel.source, {"RowLayout<4, 64, 256, 8, 8>", "input_entry(", "store_packets<",
                               "epoch % 2", "u32(epoch + 1)", "load_packets<"});
  expect_clean_build(kernel);
}

TEST(Codegen, StoresToPeersAndSlotsByTma) {
  ProgramBuilder p("sample", 4);
  auto a = p.input("a", DType::kBF16, {256, 256});
  auto b = p.input("b", DType::kBF16, {128, 256});
  auto sent =
      p.buffer("sent", DType::kBF16, {4, 256, 128}, {.space = Space::kSymmetric, .num_slots = 2});
  p.role("gemm", Resource::sms(2).pipelined(2), p.range(2), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 128, 128);
    p.loop(4, [&](const Index& i) {
      acc = dot(acc, p.load(a.tile({t.index * 128, i * 64}, 128, 64)),
                p.load(b.tile({0, i * 64}, 128, 64)).T());
    });
    p.store(sent.tile({p.rank(), t.index * 128, 0}, 128, 128).on((p.rank() + 1) % 4).until_row(200),
            cast(acc, DType::kBF16));
  });
  GeneratedKernel kernel = generate(p.finish());
  ASSERT_EQ(kernel.launch.maps.size(), 6u);  // two loads, and the buffer on each rank
  for (int r = 0; r < 4; ++r)
    EXPECT_EQ(kernel.launch.maps[2 + static_cast<std::size_t>(r)].rank, r);
  expect_lines(kernel.source, {">= 128) {", "&p.maps[2 + remainder_of((rank + 1), 4)]",
                               "int(epoch % 2) * 4 + rank", "} else {", "store_box<"});
  expect_clean_build(kernel);
}

TEST(Codegen, CopyQueuesAndHostThreadsAreStoodInFor) {
  ProgramBuilder p("sample", 1);
  auto x = p.input("x", DType::kF32, {8, 64});
  auto y = p.output("y", DType::kF32, {8, 64});
  auto z = p.buffer("z", DType::kF32, {8, 64}, {.num_slots = 2});
  auto copies = [&](const TensorRef& to) {
    return [&p, x, to](const Tile& t) {
      p.copy(to.tile({t.index, 0}, 1, 64), x.tile({t.index, 0}, 1, 64));
    };
  };
  p.role("queues", Resource::copy_engine(3), p.range(8), copies(z));
  p.role("threads", Resource::host(2), p.range(8), copies(y));
  GeneratedKernel kernel = generate(p.finish());
  EXPECT_EQ(kernel.launch.grid, 5);
  ASSERT_EQ(kernel.launch.engines.on_sms.size(), 2u);
  expect_lines(kernel.source,
               {"// role 'queues' is meant for 3 copy queues: blocks of the kernel stand in, since",
                "the slot of 'z'", "// role 'threads' is meant for 2 host threads",
                "(blockIdx.x < 3)", "+= 3", "blockIdx.x >= 3 && blockIdx.x < 5", "+= 2"});
  expect_clean_build(kernel);
}

// Threads beyond a role's own give their registers to those that compute.
TEST(Codegen, RolesOfDifferentSizeShareAKernel) {
  ProgramBuilder p("sample", 1);
  auto x = p.input("x", DType::kBF16, {256, 256});
  auto c = p.output("c", DType::kBF16, {256, 256});
  auto y = p.output("y", DType::kBF16, {256, 256});
  p.role("gemm", Resource::sms(2).pipelined(2), p.range(2), [&](const Tile& t) {
    Value acc = p.zeros(DType::kF32, 128, 256);
    p.loop(4, [&](const Index& i) {
      acc = dot(acc, p.load(x.tile({t.index * 128, i * 64}, 128, 64)),
                p.load(x.tile({0, i * 64}, 256, 64)).T());
    });
    p.store(c.tile({t.index * 128, 0}, 128, 256), cast(acc, DType::kBF16));
  });
  p.role("copy", Resource::sms(1), p.range(4), [&](const Tile& t) {
    p.store(y.tile({t.index * 64, 0}, 64, 256), p.load(x.tile({t.index * 64, 0}, 64, 256)));
  });
  GeneratedKernel kernel = generate(p.finish());
  EXPECT_EQ(kernel.launch.grid, 3);
  expect_lines(kernel.source, {"// role 'copy'", "register_budget_raise<240>();", "} else {",
                               "register_budget_lower<24>();"});
  expect_clean_build(kernel);
}

Program two_agents() {
  Program program = run_pipeline(one_role([](ProgramBuilder& p) -> Body {
    auto y = p.output("y", DType::kF32, {2, 64});
    return [=](ProgramBuilder& q, const Tile& t) {
      q.store(y.tile({t.index, 0}, 1, 64), q.zeros(DType::kF32, 1, 64));
    };
  }));
  Role& role = program.roles[0];
  role.barriers = {{.name = "turn", .num_arrivals = 2}};
  Agent second{.name = "second", .kind = AgentKind::kConsumer, .num_threads = 128};
  second.body = {{.code = OpCode::kArrive, .symbol = 0, .loc = role.loc}};
  role.agents[0].body.push_back({.code = OpCode::kBarrierSync, .symbol = 0, .loc = role.loc});
  role.agents.push_back(second);
  return program;
}

TEST(Codegen, NamedBarriersCountTheirAgentsThreads) {
  GeneratedKernel kernel = generate_kernel(two_agents());
  expect_lines(kernel.source, {"named_barrier_sync(3, 384);", "named_barrier_arrive(3, 384);"});
  expect_clean_build(kernel);
}

TEST(CodegenRefuses, ABarrierOfAProducer) {
  Program program = run_pipeline(gemm({}));
  Role& role = program.roles[0];
  role.barriers = {{.name = "turn", .num_arrivals = 2}};
  for (Agent& agent : role.agents) {
    agent.body.push_back({.code = OpCode::kBarrierSync, .symbol = 0, .loc = role.loc});
  }
  expect_refusal(refusal([&] { generate_kernel(program); }), "gemm", "counts warps");
}

TEST(CodegenRefuses, TooManyBarriers) {
  Program program = two_agents();
  Role& role = program.roles[0];
  role.barriers.resize(14, role.barriers[0]);
  for (Agent& agent : role.agents) agent.body.back().symbol = 13;
  expect_refusal(refusal([&] { generate_kernel(program); }), "work", "too many");
}

TEST(CodegenRefuses, AdditionInOrderOfArrival) {
  Program program = one_role([](ProgramBuilder& p) -> Body {
    auto y = p.state("y", DType::kF32, {1, 64});
    return [=](ProgramBuilder& q, const Tile&) {
      q.reduce_store(y.tile({0, 0}, 1, 64), q.full(DType::kF32, 1, 64, 1));
    };
  });
  expect_refusal(refusal([&] { generate(program); }), "work", "order of arrival");
}

TEST(CodegenRefuses, PacketsOfHalves) {
  Program program = one_role([](ProgramBuilder& p) -> Body {
    auto box = p.buffer("box", DType::kF16, {2, 33}, {.num_slots = 2, .packet = true});
    return [=](ProgramBuilder& q, const Tile& t) {
      q.store_packet(box.tile({t.index, 0}, 1, 33), q.zeros(DType::kF16, 1, 33));
    };
  });
  expect_refusal(refusal([&] { generate(program); }), "work", "odd number of elements");
}

TEST(CodegenRefuses, MoreSharedMemoryThanABlockHas) {
  expect_refusal(refusal([] { generate(gemm({.num_stages = 8})); }), "gemm",
                 "bytes of shared memory, a block has 232448");
}

TEST(CodegenRefuses, ClustersThatCannotShare) {
  expect_refusal(refusal([] { generate(gemm({.k = 1020, .cluster = 2})); }), "gemm",
                 "cluster loads pipe 'a' by TMA");
  expect_refusal(refusal([] { generate(gemm({.bm = 120, .cluster = 2})); }), "gemm",
                 "rows in multiples of 8");
  expect_refusal(refusal([] { generate(gemm({.cluster = 2, .row_limit = true})); }), "gemm",
                 "row limit on rows that");
  expect_refusal(refusal([] { generate(gemm({.dtype = DType::kF32, .cluster = 2})); }), "gemm",
                 "slots that one factor reads|shared memory");
}

TEST(CodegenRefuses, Doubles) {
  for (DType memory : {DType::kF32, DType::kF64}) {
    Program program = one_role([=](ProgramBuilder& p) -> Body {
      auto y = p.output("y", memory, {2, 64});
      return [=](ProgramBuilder& q, const Tile& t) {
        q.store(y.tile({t.index, 0}, 1, 64), q.zeros(DType::kF64, 1, 64));
      };
    });
    EXPECT_NE(refusal([&] { generate(program); }).find("float64, which CPU"), std::string::npos);
  }
}

TEST(CodegenRefuses, APipeThatIsNeverFilled) {
  Program program = run_pipeline(gemm({}));
  program.roles[0].agents[0].body.clear();
  expect_refusal(refusal([&] { generate_kernel(program); }), "gemm", "never filled");
}

}  // namespace
}  // namespace stretto::codegen_test
