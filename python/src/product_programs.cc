#include "product_programs.h"

#include <nanobind/stl/vector.h>

#include "chosen.h"
#include "fields.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// What a product with any collective has; `result`: the dtype of what it gives.
template <typename Desc>
void take_product(Fields& fields, Desc& d, DType& result) {
  fields.take({{"world_size", d.world_size},
               {"m", d.m},
               {"n", d.n},
               {"k", d.k},
               {"dtype", d.a_dtype},
               {"scaling", d.scaling},
               {"b_kn", d.b_kn},
               {"result_dtype", result}});
  d.b_dtype = d.a_dtype;
}

AgGemmDesc gathered(Fields& fields) {
  AgGemmDesc d;
  take_product(fields, d, d.c_dtype);
  fields.take({{"gathered", d.gathered}});
  return d;
}

AgColumnsDesc columns(Fields& fields) {
  AgColumnsDesc d;
  take_product(fields, d, d.c_dtype);
  return d;
}

GemmAgDesc columns_gathered(Fields& fields) {
  GemmAgDesc d;
  take_product(fields, d, d.c_dtype);
  return d;
}

template <typename Desc>
Desc reduced(Fields& fields) {
  Desc d;
  take_product(fields, d, d.out_dtype);
  return d;
}

GemmRsDesc scattered(Fields& fields) {
  auto d = reduced<GemmRsDesc>(fields);
  fields.take({{"average", d.average}});
  return d;
}

// Lists of programs: one, or the two of a sequence.
template <typename Desc>
void bind_product(nb::module_& m, const char* name, Desc (*desc)(Fields&)) {
  m.def(name, [=](int sms, nb::kwargs given) {
    Fields fields(name, std::move(given));
    Desc d = desc(fields);
    return chosen_programs(d, take_products(fields), target(sms));
  });
}

}  // namespace

void bind_products(nb::module_& m) {
  bind_product(m, "ag_gemm", gathered);
  bind_product(m, "ag_columns_gemm", columns);
  bind_product(m, "gemm_ag", columns_gathered);
  bind_product(m, "gemm_rs", scattered);
  bind_product(m, "gemm_ar", reduced<GemmArDesc>);
}

}  // namespace stretto::python
