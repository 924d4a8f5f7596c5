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
                 {name(Reduction::kProduct), Reduction::kProduct},
                 {name(Reduction::kPremulSum), Reduction::kPremulSum}}}});
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

NormDesc columns_norm(Fields& fields) {
  NormDesc d = norm(fields);
  fields.take({{"add_residual", d.add_residual}});
  return d;
}

// Of collectives of one rank with the others.
void bind_rooted(nb::module_& m, const char* name, CollectiveDesc (*desc)(Fields&),
                 Program (*program)(const CollectiveDesc&, const CollectiveConfig&, int root)) {
  m.def(name, [=](int sms, nb::kwargs given) {
    Fields fields(name, std::move(given));
    CollectiveDesc d = desc(fields);
    int root = 0;
    fields.take({{"root", root}});
    fields.finish();
    return program(d, default_fetching_config(d, target(sms)), root);
  });
}

Program send_program(int sms, nb::kwargs given) {
  Fields fields("send", std::move(given));
  CollectiveDesc d = collective(fields);
  int sender = 0, receiver = 0;
  fields.take({{"sender", sender}, {"receiver", receiver}});
  fields.finish();
  return send_to(d, default_fetching_config(d, target(sms)), sender, receiver);
}

}  // namespace

void bind_collectives(nb::module_& m) {
  bind_operator(m, "all_gather", collective, all_gather, default_config);
  bind_operator(m, "reduce_scatter", reduction, reduce_scatter, default_config);
  bind_operator(m, "all_reduce", reduction, all_reduce, default_all_reduce_config);
  bind_operator(m, "all_to_all", collective, all_to_all, default_config);
  bind_rooted(m, "broadcast", collective, broadcast);
  bind_rooted(m, "reduce", reduction, reduce_to);
  bind_rooted(m, "gather", collective, gather_to);
  bind_rooted(m, "scatter", collective, scatter_from);
  m.def("send", send_program);
  bind_operator(m, "all_reduce_add_rms_norm", norm, all_reduce_add_rms_norm,
                default_all_reduce_config);
  bind_operator(m, "reduce_scatter_add_rms_norm", norm, reduce_scatter_add_rms_norm,
                default_reduce_scatter_config);
  bind_operator(m, "rms_norm_columns", columns_norm, rms_norm_columns, default_columns_config);
}

}  // namespace stretto::python
