// What is made of one size and numbers, looked at for each value of the size.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

class OfSize {
 public:
  // `var`: an extent.
  OfSize(const Program& program, int var);

  // No smaller where the size is larger. False where that is not seen.
  bool grows(const Expr& expr);
  // a times `by` is no less than b, at each size. False where that is not seen.
  bool reaches(const Expr& a, std::int64_t by, const Expr& b);

 private:
  bool at_each_size(std::initializer_list<const Expr*> of,
                    const std::function<bool(std::int64_t)>& holds);
  std::int64_t value(const Expr& expr, std::int64_t size);

  int var_;
  std::int64_t bound_;
  std::vector<std::int64_t> vars_;
};

}  // namespace stretto
