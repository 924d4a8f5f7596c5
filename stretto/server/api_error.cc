#include "stretto/server/api_error.h"

#include "stretto/base/json.h"

namespace stretto {

ApiError::ApiError(int status, const std::string& message, std::string param, HttpHeaders headers)
    : std::runtime_error(message),
      status_(status),
      param_(std::move(param)),
      headers_(std::move(headers)) {}

const char* ApiError::type() const {
  switch (status_) {
    case 400:
      return "BadRequestError";
    case 401:
      return "Unauthorized";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowed";
    case 408:
      return "RequestTimeout";
    case 413:
      return "PayloadTooLarge";
    case 415:
      return "UnsupportedMediaType";
    case 431:
      return "RequestHeaderFieldsTooLarge";
    case 429:
      return "RateLimitError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailable";
    default:
      return "InternalServerError";
  }
}

std::string ApiError::body() const {
  Json param = param_.empty() ? Json(nullptr) : Json(param_);
  return to_line(
      {{"error", {{"message", what()}, {"type", type()}, {"param", param}, {"code", status_}}}});
}

HttpResponse ApiError::response() const {
  HttpResponse out{.status = status_, .body = body(), .headers = headers_};
  if (status_ == 429 || status_ == 503) out.headers.emplace_back("Retry-After", "1");
  return out;
}

}  // namespace stretto
