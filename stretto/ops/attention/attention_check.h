// Refuses descs and configs of attention programs, field by field.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>

#include "stretto/base/dtype.h"
#include "stretto/base/errors.h"

namespace stretto {

struct FieldCheck {
  const char* op;
  // UserError naming operator, field and value, unless `ok`; `what` ends "need ...".
  void operator()(bool ok, const char* field, std::int64_t value, const char* what) const {
    if (!ok) throw UserError(fmt::format("{}: {} is {}, need {}", op, field, value, what));
  }
  // UserError unless there is at least one of each.
  void at_least_one(std::initializer_list<std::pair<const char*, std::int64_t>> fields) const {
    for (const auto& [field, value] : fields) (*this)(value >= 1, field, value, "at least 1");
  }
  // UserError unless the same number of query heads shares each head of keys.
  void heads(std::int64_t num_heads, std::int64_t num_kv_heads) const {
    at_least_one({{"num_kv_heads", num_kv_heads}});
    (*this)(num_heads >= 1 && num_heads % num_kv_heads == 0, "num_heads", num_heads,
            "a positive multiple of num_kv_heads");
  }
  // UserError for infinities and what is no number.
  void finite(const char* field, std::optional<double> value) const {
    if (!value || std::isfinite(*value)) return;
    throw UserError(fmt::format("{}: {} is {}, need a finite number", op, field, *value));
  }
  // UserError for doubles: attention computes in f32.
  void not_double(const char* field, DType dtype) const {
    if (dtype != DType::kF64) return;
    throw UserError(fmt::format("{}: {} is {}, need a narrower float", op, field, name(dtype)));
  }
};

}  // namespace stretto
