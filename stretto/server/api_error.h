// What a client did wrong, or what the server cannot do, as the OpenAI API tells it: a status and
// {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "stretto/server/http.h"

namespace stretto {

class ApiError : public std::runtime_error {
 public:
  // `param`: the request's field, "" for none. What a message quotes of the request is cut short
  // by whoever makes it.
  ApiError(int status, const std::string& message, std::string param = "",
           HttpHeaders headers = {});

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  // "BadRequestError", "NotFoundError", ...
  const char* type() const;
  std::string body() const;
  HttpResponse response() const;

 private:
  int status_;
  std::string param_;
  HttpHeaders headers_;  // of the response
};

}  // namespace stretto
