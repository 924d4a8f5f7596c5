#include "product_programs.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "chosen.h"
#include "fields.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

template <typename Desc>
ProductChoice<Desc> choice_of(const char* name, int sms, std::string measured_on,
                              nb::kwargs given) {
  Fields fields(name, std::move(given));
  auto desc = fields.desc<Desc>();
  return {desc, {take_products(fields), target(sms), std::move(measured_on)}};
}

// NAME: (config, its one program or the two of a sequence). NAME_offers: a list of those.
// keep_NAME: one of them by its config, and the milliseconds that it takes.
template <typename Desc>
void bind_product(nb::module_& m, const char* name) {
  m.def(
      name,
      [=](int sms, std::string measured_on, nb::kwargs given) {
        auto choice = choice_of<Desc>(name, sms, std::move(measured_on), std::move(given));
        Offer offer = choice.chosen();
        return nb::make_tuple(std::move(offer.config), std::move(offer.programs));
      },
      nb::arg("sms"), nb::arg("measured_on"), nb::arg("given"));
  m.def((std::string(name) + "_offers").c_str(),
        [=](int sms, int most_fused, nb::kwargs given) {
          auto choice = choice_of<Desc>(name, sms, "", std::move(given));
          nb::list all;
          for (Offer& offer : choice.offers(most_fused)) {
            all.append(nb::make_tuple(std::move(offer.config), std::move(offer.programs),
                                      offer.predicted_ms));
          }
          return all;
        },
        nb::arg("sms"), nb::arg("most_fused"), nb::arg("given"));
  m.def(("keep_" + std::string(name)).c_str(),
        [=](int sms, std::string measured_on, const std::string& config, double ms,
            nb::kwargs given) {
          choice_of<Desc>(name, sms, std::move(measured_on), std::move(given)).keep(config, ms);
        },
        nb::arg("sms"), nb::arg("measured_on"), nb::arg("config"), nb::arg("ms"), nb::arg("given"));
}

}  // namespace

void bind_products(nb::module_& m) {
  bind_product<GemmDesc>(m, "gemm");
  bind_product<AgGemmDesc>(m, "ag_gemm");
  bind_product<AgColumnsDesc>(m, "ag_columns_gemm");
  bind_product<GemmAgDesc>(m, "gemm_ag");
  bind_product<GemmRsDesc>(m, "gemm_rs");
  bind_product<GemmArDesc>(m, "gemm_ar");
}

}  // namespace stretto::python
