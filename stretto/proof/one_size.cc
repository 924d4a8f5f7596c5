#include "stretto/proof/one_size.h"

#include <limits>
#include <utility>

#include "stretto/base/at.h"
#include "stretto/base/errors.h"
#include "stretto/ir/expr_arithmetic.h"
#include "stretto/proof/loop_fold.h"

namespace stretto {

OfSize::OfSize(const Program& program, int var)
    : var_(var), bound_(program.vars[at(var)].bound), vars_(program.vars.size()) {}

bool OfSize::grows(const Expr& expr) {
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
  return at_each_size({&expr}, [&](std::int64_t size) {
    std::int64_t next = value(expr, size);
    return std::exchange(last, next) <= next;
  });
}

bool OfSize::reaches(const Expr& a, std::int64_t by, const Expr& b) {
  return at_each_size({&a, &b}, [&](std::int64_t size) {
    return apply(ExprOp::kMul, value(a, size), by) >= value(b, size);
  });
}

bool OfSize::at_each_size(std::initializer_list<const Expr*> of,
                          const std::function<bool(std::int64_t)>& holds) {
  constexpr std::int64_t kMostSizes = std::int64_t{1} << 20;
  if (bound_ > kMostSizes) return false;
  for (const Expr* e : of) {
    if (!all_go_by_only({*e}, {var_})) return false;
  }
  try {
    for (std::int64_t size = 0; size <= bound_; ++size) {
      if (!holds(size)) return false;
    }
  } catch (const Error&) {  // it has no value at some size
    return false;
  }
  return true;
}

std::int64_t OfSize::value(const Expr& expr, std::int64_t size) {
  vars_[at(var_)] = size;
  return eval(expr, vars_);
}

}  // namespace stretto
