#include "stretto/ops/operator/field_check.h"

#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto {

void check_sizes(const std::string& op, std::initializer_list<NamedSize> sizes,
                 std::int64_t least) {
  for (const NamedSize& size : sizes) {
    if (size.value < least) {
      throw UserError(
          fmt::format("{}: {} is {}, must be at least {}", op, size.name, size.value, least));
    }
  }
}

void check_dtype(const std::string& op, const char* field, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16) return;
  throw UserError(
      fmt::format("{}: {} is {}, must be float32, bfloat16 or float16", op, field, name(dtype)));
}

}  // namespace stretto
