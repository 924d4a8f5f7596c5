// What is wrong with a template, or with what it is given.
#pragma once

#include <fmt/format.h>

#include <string>

#include "stretto/base/errors.h"

namespace stretto::jinja {

// The message has neither the template's name nor the line; Template::parse() and render() throw
// UserErrors that have both.
class TemplateError : public UserError {
 public:
  explicit TemplateError(const std::string& message, int line = 0)
      : UserError(message), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;  // 0: not known yet
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace stretto::jinja
