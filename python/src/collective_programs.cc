#include "collective_programs.h"

#include "fields.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/norm/norm.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

CollectiveDesc collective(Fields& fields) {
  CollectiveDesc d;
  fields.take({{"world_size", d.world_size}, {"dtype", d.dtype}, {"m", d.m}, {"n", d.n}});
  return d;
}

CollectiveDesc reduction(Fields& fields) {
  CollectiveDesc d = collective(fields);
  fields.take({{"reduction",
                d.reduction,
                {{name(Reduction::kSum), Reduction::kSum},
                 {name(Reduction::kAverage), Reduction::kAverage},
                 {name(Reduction::kMin), Reduction::kMin},
                 {name(Reduction::kMax), Reduction::kMax},
                 {name(Reduction::kProduct), Reduction::kProduct}}}});
  return d;
}

NormDesc norm(Fields& fields) {
  NormDesc d;
  fields.take({{"world_size", d.world_size},
               {"dtype", d.dtype},
               {"weight_dtype", d.weight_dtype},
               {"m", d.m},
               {"hidden", d.hidden},
               {"eps", d.eps}});
  d.add_residual = true;
  return d;
}

Program broadcast_program(bool gpu, nb::kwargs given) {
  Fields fields("broadcast", std::move(given));
  CollectiveDesc d = collective(fields);
  int root = 0;
  fields.take({{"root", root}});
  fields.finish();
  return broadcast(d, default_fetching_config(d, target(gpu)), root);
}

}  // namespace

void bind_collectives(nb::module_& m) {
  bind_operator(m, "all_gather", collective, all_gather, default_config);
  bind_operator(m, "reduce_scatter", reduction, reduce_scatter, default_config);
  bind_operator(m, "all_reduce", reduction, all_reduce, default_all_reduce_config);
  bind_operator(m, "all_to_all", collective, all_to_all, default_config);
  m.def("broadcast", broadcast_program);
  bind_operator(m, "all_reduce_add_rms_norm", norm, all_reduce_add_rms_norm,
                default_all_reduce_config);
}

}  // namespace stretto::python
