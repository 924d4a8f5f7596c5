// If these fail, a user's collective gives wrong numbers, or numbers that depend on the algorithm
// chosen.
#include "stretto/ops/collectives/collectives.h"

#include <gtest/gtest.h>

#include "stretto/base/errors.h"
#include "stretto/base/test_errors.h"
#include "stretto/base/test_seed.h"
#include "stretto/compiler.h"
#include "stretto/ops/harness/case_memory.h"
#include "stretto/ops/harness/run_case.h"

namespace stretto {
namespace {

TEST(Collectives, BadDescNamesTheField) {
  CollectiveDesc d{.m = 4, .n = 0, .world_size = 2};
  try {
    all_gather(d, {});
    FAIL() << "accepted n = 0";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("n is 0"), std::string::npos) << e.what();
  }
  EXPECT_THROW(broadcast({.m = 1, .n = 1, .world_size = 2}, {}, 2), UserError);
}

// What a config asks for, it gets.
TEST(Collectives, FieldsWithoutUseAreRefused) {
  CollectiveDesc d{.m = 64, .n = 64, .world_size = 2};
  auto refused = [&](const CollectiveConfig& c, const std::string& what) {
    expect_user_error([&] { all_reduce(d, c); }, {"all_reduce_", "[64, 64] f32 P=2", what});
  };
  refused({.piece_rows = 65}, "piece_rows is 65, can only be 64");
  refused({.packets = true}, "packets is true, can only be false");
  refused({.num_queues = 2, .num_copy_sms = 8}, "num_queues is 2, can only be 1");
  for (AllReduceKind kind : {AllReduceKind::kOneShot, AllReduceKind::kPacket}) {
    refused({.all_reduce = kind, .push = true}, "push is true, can only be false");
  }
  refused({.num_workers = 2, .all_reduce = AllReduceKind::kRing},
          "num_workers is 2, can only be 1");
  CollectiveConfig pushing{.push = true};
  expect_user_error([&] { broadcast(d, pushing, 0); }, {"broadcast [64, 64]", "push is true"});
  for (Target target : {Target::kCpu, Target::kCuda}) {
    broadcast(d, default_fetching_config(d, target), 0);
  }
}

TEST(Collectives, ReferenceOfAllReduceIsTheSum) {
  OpCase c =
      all_reduce_info(AllReduceKind::kOneShot).make_case({.world_size = 2, .m = 2, .n = 3}, 0);
  auto in = static_cast<std::size_t>(c.program.find_tensor("in"));
  auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_DOUBLE_EQ(c.expected[1][out][i], c.inputs[0][in][i] + c.inputs[1][in][i]);
  }
}

// Output bits of every rank after one launch on the same inputs.
std::vector<std::vector<std::byte>> bits_of(AllReduceKind kind, const OpShape& shape,
                                            std::uint64_t seed) {
  OpCase c = all_reduce_info(kind).make_case(shape, seed);
  CompiledProgram compiled = compile(c.program);
  World world({.size = shape.world_size});
  std::vector<std::vector<std::byte>> bits(static_cast<std::size_t>(shape.world_size));
  world.run([&](Rank& rank) {
    CaseMemory memory(rank, c);
    memory.poison_outputs();
    Instance instance(rank, compiled.schedule, compiled.quotas);
    instance.launch(memory.args());
    auto out = static_cast<std::size_t>(c.program.find_tensor("out"));
    bits[static_cast<std::size_t>(rank.index())] = memory.bytes_of(out);
  });
  return bits;
}

TEST(Collectives, AllReduceHasTheSameBitsByEveryRouteOnEveryRank) {
  std::uint64_t seed = test_seed() % 100'000 * 3;  // a full extent
  SCOPED_TRACE(seed);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (int world = 1; world <= 8; ++world) {
      for (std::int64_t m : {4, 13, 51}) {  // two-shot: by packets, by slots, by reading
        OpShape shape{.world_size = world, .m = m, .n = 21, .dtype = dtype};
        auto one_shot = bits_of(AllReduceKind::kOneShot, shape, seed);
        for (const auto& rank_bits : one_shot) EXPECT_EQ(rank_bits, one_shot[0]);
        EXPECT_EQ(bits_of(AllReduceKind::kTwoShot, shape, seed), one_shot) << m;
        EXPECT_EQ(bits_of(AllReduceKind::kPacket, shape, seed), one_shot) << m;
      }
    }
  }
}

// Of doubles, to the last bits of a double.
TEST(Collectives, Doubles) {
  std::uint64_t seed = test_seed() % 100'000;
  std::vector<OperatorInfo> all = {all_gather_info(), reduce_scatter_info(), all_to_all_info(),
                                   broadcast_info()};
  for (AllReduceKind kind : {AllReduceKind::kOneShot, AllReduceKind::kTwoShot,
                             AllReduceKind::kPacket, AllReduceKind::kRing}) {
    all.push_back(all_reduce_info(kind));
  }
  for (const OperatorInfo& info : all) {
    for (std::int64_t m : {4, 13, 51}) {
      OpCase c = info.make_case({.world_size = 3, .m = m, .n = 21, .dtype = DType::kF64}, seed);
      EXPECT_LT(c.tolerance, 1e-14);
      EXPECT_EQ(run_case(c, {.launches = 2, .require_proof = true}), "")
          << c.config << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace stretto
