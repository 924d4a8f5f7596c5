// The fields of an operator's Desc (its fields_of()) by their names, as Python's keyword arguments
// give them. Comes before the *_programs.cc.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "programs.h"
#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"

namespace stretto::python {

class Fields {
 public:
  // `program`: what errors name.
  Fields(const char* program, nanobind::kwargs given)
      : program_(program), given_(std::move(given)) {}

  // InternalError naming a field whose value is of another kind, or that is not there; one that
  // text may leave out stays as it is then.
  void take(const NamedFields& fields);
  template <typename Desc>
  Desc desc() {
    Desc d;
    take(fields_of(d));
    return d;
  }
  // InternalError naming what was given beside all that was taken.
  void finish() const;

 private:
  const char* program_;
  nanobind::kwargs given_;
  std::vector<std::string> taken_;
};

// Offers NAME(sms, **fields): the program of the Desc with these fields, in the default config.
template <typename Desc, typename Config>
void bind_operator(nanobind::module_& m, const char* name,
                   Program (*program)(const Desc&, const Config&),
                   Config (*default_config)(const Desc&, Target)) {
  m.def(name, [=](int sms, nanobind::kwargs given) {
    Fields fields(name, std::move(given));
    auto d = fields.desc<Desc>();
    fields.finish();
    return program(d, default_config(d, target(sms)));
  });
}

}  // namespace stretto::python
