// Any bytes: the parser may throw UserError only; what it accepts must print and parse to the same
// text, and the check may throw UserError only.
#include <cstdint>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/step/check.h"
#include "stretto/step/memory.h"
#include "stretto/step/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace step = stretto::step;
  step::Plan plan;
  try {
    plan = step::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const stretto::UserError&) {
    return 0;
  }
  std::string text = step::print(plan);
  STRETTO_CHECK(step::print(step::parse(text, "again")) == text, "text form is not stable");
  try {
    step::check(plan);
  } catch (const stretto::UserError&) {
    return 0;
  }
  step::assign(plan);
  return 0;
}
