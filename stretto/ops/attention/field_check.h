// Refuses descs and configs of attention programs, field by field.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "stretto/base/dtype.h"
#include "stretto/base/errors.h"

namespace stretto {

struct FieldCheck {
  const char* op;
  // UserError naming operator, field and value, unless `ok`; `what` ends "need ...".
  void operator()(bool ok, const char* field, std::int64_t value, const char* what) const {
    if (!ok) throw UserError(fmt::format("{}: {} is {}, need {}", op, field, value, what));
  }
  // UserError for doubles: attention computes in f32.
  void not_double(const char* field, DType dtype) const {
    if (dtype != DType::kF64) return;
    throw UserError(fmt::format("{}: {} is {}, need a narrower float", op, field, name(dtype)));
  }
};

}  // namespace stretto
