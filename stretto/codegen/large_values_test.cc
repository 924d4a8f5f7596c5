// Tiles that no registers hold. If this fails, `stretto compile` goes on for minutes, or for ever,
// where somebody wrote a tile that is too large.
#include "stretto/base/test_errors.h"
#include "stretto/codegen/kernel_testing.h"
#include "stretto/lang/program_builder.h"

namespace stretto::large_values_test {
namespace {

Program doubled(std::int64_t rows, std::int64_t cols) {
  ProgramBuilder p("doubled", 1);
  auto in = p.input("in", DType::kF32, {rows, cols});
  auto out = p.output("out", DType::kF32, {rows, cols});
  p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {
    Value x = p.load(in.tile({0, 0}, rows, cols));
    p.store(out.tile({0, 0}, rows, cols), x + x);
  });
  return p.finish();
}

TEST(LargeValues, AreRefusedWithTheirRoleAndSize) {
  EXPECT_NO_THROW(generate(doubled(256, 512)));
  expect_user_error([] { generate(doubled(1024, 1024)); },
                    {"large_values_test.cc:", "role 'add'", "f32[1024, 1024]", "4096 elements"});
  expect_user_error([] { generate(doubled(1, 1 << 20)); }, {"f32[1, 1048576]"});
  expect_user_error([] { generate(doubled(1 << 20, 1)); }, {"f32[1048576, 1]"});
}

}  // namespace
}  // namespace stretto::large_values_test
