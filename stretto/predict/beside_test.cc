// What a user would lose: that roles beside each other slow each other down, which is what the
// chooser weighs against SMs of their own.
#include <gtest/gtest.h>

#include <string>

#include "stretto/ir/parser.h"
#include "stretto/predict/prediction.h"
#include "stretto/predict/test_machine.h"

namespace stretto::predict {
namespace {

// Role `first`'s or `second`'s only worker, by an agent of this kind, copies 64 tiles [64, 64] by
// way of registers. `where`: of `second`.
Lowered copies(const std::string& role, const std::string& kind, const std::string& where) {
  const std::string work = R"(
      values $0: f32[64, 64]
      loop %i from 0 to 64 {
        $0 = load @in[%i * 64, 0] tile [64, 64]
        store $0 to @out[%i * 64, 0] tile [64, 64]
      })";
  auto agent = [&](const std::string& of) {
    return of == role ? "    agent work " + kind + " {" + work + "\n    }\n"
                      : std::string("    agent body body {\n    }\n");
  };
  return lower(parse(R"(program "rows" world 1 level schedule {
  rank %rank
  tile %t
  tile %u
  loop %i
  input @in : f32[4096, 64]
  output @out : f32[4096, 64]
  on_start on_start body {
  }
  role first sms 1 tiles %t < 1 {
)" + agent("first") + R"(  }
  role second sms 1)" + where +
                         " tiles %u < 1 {\n" + agent("second") + R"(  }
  on_end on_end body {
  }
}
)",
                     "test", MissingLocs::kFill));
}

// They are behind those of the products, so what one SM of its own takes is longer there.
TEST(Beside, LoadsTakeLonger) {
  Machine m = round_machine(1);
  m.load_latency = 1e-6;
  double alone = predict(copies("second", "body", ""), m).time_ms;
  double beside = predict(copies("second", "body", " beside first"), m).time_ms;
  EXPECT_GT(beside - alone, 64 * 1e-3);  // of each load at least as much again
  EXPECT_LT(beside - alone, 64 * 4e-3);
}

TEST(Beside, TilesOfTheRoleThatSharesItsSmsTakeLongerToStore) {
  Machine m = round_machine(1);
  m.tile_cost = 1e-6;  // of 128 x 256 elements: an eighth of it of each tile
  double alone = predict(copies("first", "consumer", ""), m).time_ms;
  double with = predict(copies("first", "consumer", " beside first"), m).time_ms;
  EXPECT_GT(with - alone, 0.5 * 64 / 8 * 1e-3);
  EXPECT_LT(with - alone, 64 / 8 * 1e-3);
}

}  // namespace
}  // namespace stretto::predict
