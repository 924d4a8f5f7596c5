#include "stretto/ops/moe/gated_unit.h"

#include <fmt/format.h>

#include <cmath>

#include "stretto/base/errors.h"

namespace stretto {

NamedFields fields_of(GatedUnit& u) {
  const GatedUnit silu;
  return {
      {"alpha", u.alpha, silu.alpha}, {"beta", u.beta, silu.beta}, {"limit", u.limit, silu.limit}};
}

void check(const char* op, const GatedUnit& u, bool swiglu) {
  if (!std::isfinite(u.alpha) || !std::isfinite(u.beta) || !(u.limit > 0)) {
    throw UserError(fmt::format(
        "{}: gate has alpha {}, beta {}, limit {}; need finite ones and a limit above 0", op,
        u.alpha, u.beta, u.limit));
  }
  if (!swiglu && u != GatedUnit{}) {
    throw UserError(fmt::format("{}: gate has {}, and there are no two products", op, text_of(u)));
  }
}

Value gated(ProgramBuilder& p, const GatedUnit& u, const Value& gate, const Value& up) {
  if (u == GatedUnit{}) return silu(gate) * up;
  Value g = gate, linear = up;
  if (std::isfinite(u.limit)) {
    Value most = p.full(DType::kF32, 1, 1, u.limit);
    g = where(gate > most, most, gate);
    linear = maximum(minimum(up, u.limit), -u.limit);
  }
  Value swish = u.alpha == 1 ? silu(g) : g * sigmoid(g * u.alpha);
  return u.beta == 0 ? swish * linear : swish * (linear + u.beta);
}

}  // namespace stretto
