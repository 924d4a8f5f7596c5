// Functions, filters, tests and methods that templates may call.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "stretto/server/jinja/evaluator.h"

namespace stretto::jinja {

// Sets range, namespace, dict, raise_exception and the like. functions.cc.
void add_functions(Evaluator& evaluator);

// An attribute that Python's objects have, bound to its object; undefined where there is none, an
// error upon its call where it would change the object. methods.cc.
Value method(const Value& object, const std::string& name);

bool is_filter(const std::string& name);
bool is_test(const std::string& name);

// Whether a body mentions the name. functions.cc.
bool uses_name(const Statements& body, const std::string& name);

// Arguments by place or by name. TemplateError for too many, unknown and missing ones.
class Given {
 public:
  Given(const std::string& function, Arguments& arguments, std::initializer_list<const char*> names,
        std::size_t num_required = 0);

  bool has(std::size_t i) const { return is_given_[i]; }
  const Value& operator[](std::size_t i) const { return values_[i]; }
  bool truth(std::size_t i, bool absent) const { return has(i) ? values_[i].truth() : absent; }
  std::int64_t integer(std::size_t i, std::int64_t absent) const;
  // str() of it.
  Text text(std::size_t i, TextView absent) const;
  // TemplateError where it is no text.
  const Text& need_text(std::size_t i) const;

 private:
  std::string function_;
  std::vector<const char*> names_;
  Values values_;
  std::vector<bool> is_given_;
};

}  // namespace stretto::jinja
