// Refuses fields of descs and configs, with the operator's and the field's name, before a program
// is made of them. What a shape leaves no choice in is field_fit.h's.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "stretto/base/dtype.h"

namespace stretto {

struct NamedSize {
  const char* name;
  std::int64_t value;
};
// UserError "<op>: <name> is <value>, ..." for the first value below `least`.
void check_sizes(const std::string& op, std::initializer_list<NamedSize> sizes,
                 std::int64_t least = 1);
// UserError unless f32, bf16 or f16.
void check_dtype(const std::string& op, const char* field, DType dtype);

}  // namespace stretto
