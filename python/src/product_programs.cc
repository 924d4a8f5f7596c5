#include "product_programs.h"

#include <nanobind/stl/vector.h>

#include "chosen.h"
#include "fields.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// Lists of programs: one, or the two of a sequence.
template <typename Desc>
void bind_product(nb::module_& m, const char* name) {
  m.def(name, [=](int sms, nb::kwargs given) {
    Fields fields(name, std::move(given));
    auto d = fields.desc<Desc>();
    return chosen_programs(d, take_products(fields), target(sms));
  });
}

}  // namespace

void bind_products(nb::module_& m) {
  bind_product<AgGemmDesc>(m, "ag_gemm");
  bind_product<AgColumnsDesc>(m, "ag_columns_gemm");
  bind_product<GemmAgDesc>(m, "gemm_ag");
  bind_product<GemmRsDesc>(m, "gemm_rs");
  bind_product<GemmArDesc>(m, "gemm_ar");
}

}  // namespace stretto::python
