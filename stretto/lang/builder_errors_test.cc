// What a user gets for a program that makes no sense: a UserError with the line to look at.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/test_errors.h"
#include "stretto/lang/program_builder.h"

namespace stretto::builder_errors_test {
namespace {

class BuilderErrors : public testing::Test {
 protected:
  // Expects an error with `part` at the line that the role's body noted.
  using Body = std::function<void(ProgramBuilder& p, const TensorRef& c)>;
  void expect_at(const char* part, const Body& body) {
    std::string what;
    try {
      ProgramBuilder p("bad", 2);
      auto c = p.output("c", DType::kF32, {8, 8});
      p.role("r", Resource::host(), p.range(1), [&](const Tile&) { body(p, c); });
      p.finish();
    } catch (const UserError& e) {
      what = e.what();
    }
    std::string place = "lang/builder_errors_test.cc:" + std::to_string(line_) + ": ";
    EXPECT_EQ(what.substr(0, place.size()), place) << what;
    EXPECT_NE(what.find(part), std::string::npos) << "missing '" << part << "' in: " << what;
  }

  int line_ = 0;
};

TEST_F(BuilderErrors, AssignmentsInLoopsKeepTheirTile) {
  expect_at("copy()", [&](ProgramBuilder& p, const TensorRef&) {
    Value acc = p.zeros(DType::kF32, 4, 4);
    Value alias = acc;
    p.loop(3, [&](const Index&) {
      line_ = __LINE__ + 1;
      acc = acc + 1.0;
    });
  });
  expect_at("from f32[4,4] to f32[4,1]", [&](ProgramBuilder& p, const TensorRef&) {
    Value acc = p.zeros(DType::kF32, 4, 4);
    line_ = __LINE__ + 1;
    p.loop(3, [&](const Index&) { acc = row_sum(acc); });
  });
  expect_at("to bf16[4,4]", [&](ProgramBuilder& p, const TensorRef&) {
    Value acc = p.zeros(DType::kF32, 4, 4);
    line_ = __LINE__ + 1;
    p.when(p.rank() == 0, [&] { acc = cast(acc, DType::kBF16); });
  });
}

TEST_F(BuilderErrors, ValuesMustHaveBeenAssigned) {
  expect_at("before anything was assigned", [&](ProgramBuilder& p, const TensorRef& c) {
    line_ = __LINE__ + 1;
    Value v;
    p.store(c.tile({0, 0}, 4, 4), exp(v));
  });
  expect_at("before anything was assigned", [&](ProgramBuilder& p, const TensorRef&) {
    Value one = p.zeros(DType::kF32, 4, 4);
    line_ = __LINE__ + 1;
    Value none;
    Value sum = one + none;
  });
  expect_at("the value was never assigned", [&](ProgramBuilder& p, const TensorRef& c) {
    Value v;

    line_ = __LINE__ + 1;
    p.store(c.tile({0, 0}, 4, 4), v);
  });
  // Assigned on one way only.
  expect_at("need not have been written", [&](ProgramBuilder& p, const TensorRef& c) {
    Value v;
    p.when(p.rank() == 0, [&] { v = p.zeros(DType::kF32, 4, 4); });
    line_ = __LINE__ + 1;
    p.store(c.tile({0, 0}, 4, 4), v);
  });
}

TEST_F(BuilderErrors, OperandsMustFit) {
  expect_at("[4,4] and [3,4] do not broadcast", [&](ProgramBuilder& p, const TensorRef& c) {
    Value a = p.zeros(DType::kF32, 4, 4);
    Value b = p.zeros(DType::kF32, 3, 4);
    line_ = __LINE__ + 1;
    Value sum = a + b;
    p.store(c.tile({0, 0}, 4, 4), sum);
  });
  expect_at("inner sizes differ", [&](ProgramBuilder& p, const TensorRef& c) {
    Value a = p.zeros(DType::kF32, 4, 4);
    Value b = p.zeros(DType::kF32, 3, 4);

    line_ = __LINE__ + 1;
    Value product = dot(p.zeros(DType::kF32, 4, 4), a, b);
    p.store(c.tile({0, 0}, 4, 4), product);
  });
  expect_at("binary", [&](ProgramBuilder& p, const TensorRef&) {
    Value a = p.zeros(DType::kF32, 4, 4);

    line_ = __LINE__ + 1;
    Value sum = a * p.zeros(DType::kBF16, 4, 4);
  });
  expect_at("the value is", [&](ProgramBuilder& p, const TensorRef& c) {
    line_ = __LINE__ + 1;
    p.store(c.tile({0, 0}, 2, 4), p.zeros(DType::kF32, 4, 4));
  });
}

TEST_F(BuilderErrors, WordsBelongInTheirPlaces) {
  ProgramBuilder p("bad", 2);
  auto c = p.output("c", DType::kF32, {8, 8});
  auto s = p.signal("s", 3);
  const std::function<void()> kCalls[] = {
      [&] { line_ = __LINE__, p.zeros(DType::kF32, 1, 1); },
      [&] { line_ = __LINE__, p.notify(s[0], 0); },
      [&] { line_ = __LINE__, p.let("x", 1); },
      [&] { line_ = __LINE__, p.worker_fence(); },
      [&] { line_ = __LINE__, p.loop(2, [&](const Index&) { p.zeros(DType::kF32, 1, 1); }); },
      [&] { line_ = __LINE__, p.when(1, [&] { p.zeros(DType::kF32, 1, 1); }); },
  };
  for (const auto& call : kCalls) {
    try {
      call();
      ADD_FAILURE() << "accepted at line " << line_;
    } catch (const UserError& e) {
      std::string what = e.what();
      EXPECT_NE(what.find(":" + std::to_string(line_) + ": "), std::string::npos) << what;
      EXPECT_NE(what.find("inside a role"), std::string::npos) << what;
    }
  }
  expect_user_error([&] { p.grid(c, 0, 4); }, {"builder_errors_test.cc", "positive"});
}

TEST_F(BuilderErrors, RolesDoNotNest) {
  expect_at("cannot be declared inside another", [&](ProgramBuilder& p, const TensorRef&) {
    line_ = __LINE__ + 1;
    p.role("inner", Resource::host(), p.range(1), [](const Tile&) {});
  });
  expect_at("cannot be declared inside another", [&](ProgramBuilder& p, const TensorRef&) {
    line_ = __LINE__ + 1;
    p.on_start([] {});
  });
}

TEST_F(BuilderErrors, SignalsAreNamedByChannelOrByRank) {
  expect_at("name the channel", [&](ProgramBuilder& p, const TensorRef&) {
    auto s = p.signal("s", 3);
    line_ = __LINE__ + 1;
    p.notify(s, 1);
  });
  expect_at("name the channel", [&](ProgramBuilder& p, const TensorRef&) {
    auto s = p.signal("s", 3);
    line_ = __LINE__ + 1;
    p.wait(s, 1);
  });
  expect_at("channel 3", [&](ProgramBuilder& p, const TensorRef&) {
    auto s = p.signal("s", 3);
    line_ = __LINE__ + 1;
    p.notify(s[3], 1);
  });
}

TEST_F(BuilderErrors, ProgramsAreFinishedOnce) {
  ProgramBuilder p("bad", 2);
  p.finish();
  expect_user_error([&] { p.finish(); },
                    {"builder_errors_test.cc:" + std::to_string(__LINE__ - 1), "twice"});
  ProgramBuilder other("other", 2), one("one", 2);
  expect_user_error(
      [&] {
        Value stray;
        other.role("r", Resource::host(), other.range(1),
                   [&](const Tile&) { stray = other.zeros(DType::kF32, 1, 1); });
        auto c = one.output("c", DType::kF32, {1, 1});
        one.role("r", Resource::host(), one.range(1), [&](const Tile&) {
          one.store(c.tile({0, 0}, 1, 1), stray);
        });
      },
      {"another program"});
}

TEST_F(BuilderErrors, MapsAndTransfersNeedTheirShapes) {
  expect_at("fixed number of columns", [&](ProgramBuilder& p, const TensorRef&) {
    auto from = p.input("from", DType::kF32, {8, p.extent("n", 4)});
    auto to = p.buffer("to", DType::kF32, {8, 4}, {.space = Space::kSymmetric});
    auto rows = p.tile_map("rows", to, {.tile_rows = 2});
    Tile t;
    line_ = __LINE__ + 1;
    p.tile_push_data(rows, t, from, to);
  });
  expect_at("signal 's' has 1 channels", [&](ProgramBuilder& p, const TensorRef& c) {
    auto rows = p.tile_map("rows", c, {.tile_rows = 2, .channels_per_rank = 2});
    auto s = p.signal("s", 1);
    line_ = __LINE__ + 1;
    p.consumer_tile_wait(s, rows, 0, 8);
  });
  for (bool notify : {true, false}) {
    expect_at(
        "signal 's' has 3 channels, map 'rows' needs 4", [&](ProgramBuilder& p, const TensorRef&) {
          auto rows = p.tile_map("rows", p.buffer("all", DType::kF32, {8, 4}), {.tile_rows = 2});
          auto s = p.signal("s", 3);
          Tile t;
          line_ = __LINE__ + 1;
          notify ? p.peer_tile_notify(s, rows, t, 0) : p.peer_tile_wait(s, rows, t, 0);
        });
  }
}

// Operators have no default arguments, but their line is what a refused shape must name.
TEST_F(BuilderErrors, EveryOperationKeepsItsLine) {
  ProgramBuilder p("lines", 1);
  auto c = p.output("c", DType::kF32, {4, 4});
  int first = 0;
  p.role("r", Resource::host(), p.range(1), [&](const Tile&) {
    first = __LINE__ + 1;
    Value a = p.zeros(DType::kF32, 4, 4);
    Value b = a + 1.0;
    Value d = exp(a * b);
    Value e = -d.T();
    p.store(c.tile({0, 0}, 4, 4), where(a < e, d, e));
  });
  Program program = p.finish();
  std::map<OpCode, std::vector<int>> lines;
  for (const Op& op : program.roles[0].agents[0].body) {
    EXPECT_EQ(op.loc.file, "lang/builder_errors_test.cc");
    lines[op.code].push_back(op.loc.line - first);
  }
  EXPECT_EQ(lines[OpCode::kFill], (std::vector<int>{0, 1}));
  EXPECT_EQ(lines[OpCode::kBinary], (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(lines[OpCode::kUnary], (std::vector<int>{2, 3}));
  EXPECT_EQ(lines[OpCode::kTranspose], (std::vector<int>{3}));
  EXPECT_EQ(lines[OpCode::kWhere], (std::vector<int>{4}));
}

}  // namespace
}  // namespace stretto::builder_errors_test
