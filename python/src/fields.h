// The fields of an operator's Desc by their names, as Python's keyword arguments give them. Comes
// before the *_programs.cc, which list the fields of each Desc in one place.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "programs.h"
#include "stretto/base/dtype.h"
#include "stretto/ir/program.h"
#include "stretto/ops/gemm/linear.h"

namespace stretto::python {

// Where the value of this name goes: a number, a truth value, or what a word stands for.
struct Field {
  template <typename T>
  requires std::is_arithmetic_v<T> Field(const char* field, T& into)
      : name(field),
        set([&into](nanobind::handle value) { return nanobind::try_cast(value, into); }) {}
  Field(const char* field, std::optional<double>& into);  // None: none
  Field(const char* field, std::string& into);
  Field(const char* field, DType& into);
  Field(const char* field, Scaling& into);
  template <typename T>
  Field(const char* field, T& into, std::vector<std::pair<std::string, T>> words)
      : name(field), set([&into, words](nanobind::handle value) {
          for (const auto& [word, meaning] : words) {
            if (!is_word(value, word)) continue;
            into = meaning;
            return true;
          }
          return false;
        }) {}

  static bool is_word(nanobind::handle value, const std::string& word);

  const char* name;
  std::function<bool(nanobind::handle)> set;  // false: the value is none of those
};

class Fields {
 public:
  // `program`: what errors name.
  Fields(const char* program, nanobind::kwargs given)
      : program_(program), given_(std::move(given)) {}

  // InternalError naming a field that is not there or whose value is of another kind.
  void take(std::initializer_list<Field> fields);
  // InternalError naming what was given beside all that was taken.
  void finish() const;

 private:
  const char* program_;
  nanobind::kwargs given_;
  std::vector<std::string> taken_;
};

// Offers NAME(sms, **fields): the program of a Desc as `desc` reads it, in the default config.
template <typename Desc, typename Config>
void bind_operator(nanobind::module_& m, const char* name, Desc (*desc)(Fields&),
                   Program (*program)(const Desc&, const Config&),
                   Config (*default_config)(const Desc&, Target)) {
  m.def(name, [=](int sms, nanobind::kwargs given) {
    Fields fields(name, std::move(given));
    Desc d = desc(fields);
    fields.finish();
    return program(d, default_config(d, target(sms)));
  });
}

}  // namespace stretto::python
