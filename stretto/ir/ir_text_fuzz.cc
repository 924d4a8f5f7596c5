// Any bytes: the parser may throw UserError only; what it accepts must print and parse to the same
// text, the verifier may throw UserError only, and what that accepts must have a size.
#include <cstdint>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/verifier.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stretto::Program program;
  try {
    program = stretto::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const stretto::UserError&) {
    return 0;
  }
  std::string text = stretto::print(program);
  STRETTO_CHECK(stretto::print(stretto::parse(text, "again")) == text, "text form is not stable");
  try {
    stretto::verify(program);
  } catch (const stretto::UserError&) {
    return 0;
  }
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    stretto::storage_bytes(program, static_cast<int>(i));
  }
  return 0;
}
