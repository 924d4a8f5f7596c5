#include "collective_programs.h"

#include "fields.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/collectives/uneven.h"
#include "stretto/ops/norm/norm.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

// Of collectives of one rank with the others.
void bind_rooted(nb::module_& m, const char* name,
                 Program (*program)(const CollectiveDesc&, const CollectiveConfig&, int root)) {
  m.def(name, [=](int sms, nb::kwargs given) {
    Fields fields(name, std::move(given));
    auto d = fields.desc<CollectiveDesc>();
    int root = 0;
    fields.take({{"root", root}});
    fields.finish();
    return program(d, default_fetching_config(d, target(sms)), root);
  });
}

Program send_program(int sms, nb::kwargs given) {
  Fields fields("send", std::move(given));
  auto d = fields.desc<CollectiveDesc>();
  int sender = 0, receiver = 0;
  fields.take({{"sender", sender}, {"receiver", receiver}});
  fields.finish();
  return send_to(d, default_fetching_config(d, target(sms)), sender, receiver);
}

}  // namespace

void bind_collectives(nb::module_& m) {
  bind_operator(m, "all_gather", all_gather, default_config);
  bind_operator(m, "reduce_scatter", reduce_scatter, default_config);
  bind_operator(m, "all_reduce", all_reduce, default_all_reduce_config);
  bind_operator(m, "all_to_all", all_to_all, default_config);
  bind_operator(m, "all_to_all_v", all_to_all_v, default_config);
  bind_operator(m, "all_gather_v", all_gather_v, default_config);
  bind_rooted(m, "broadcast", broadcast);
  bind_rooted(m, "reduce", reduce_to);
  bind_rooted(m, "gather", gather_to);
  bind_rooted(m, "scatter", scatter_from);
  m.def("send", send_program);
  bind_operator(m, "all_reduce_add_rms_norm", all_reduce_add_rms_norm, default_all_reduce_config);
  bind_operator(m, "reduce_scatter_add_rms_norm", reduce_scatter_add_rms_norm,
                default_reduce_scatter_config);
  bind_operator(m, "rms_norm_columns", rms_norm_columns, default_columns_config);
}

}  // namespace stretto::python
