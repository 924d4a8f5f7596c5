#include "stretto/server/grammar/schema_formats.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stretto::grammar {
namespace {

#define STRETTO_DATE                                                \
  "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|" \
  "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define STRETTO_TIME                                             \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?" \
  "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define STRETTO_LABEL "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define STRETTO_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

// Years begin at 1000, since readers of dates refuse the year 0; the 29th of February is left out.
constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", STRETTO_DATE},
    {"time", STRETTO_TIME},
    {"date-time", STRETTO_DATE "T" STRETTO_TIME},
    {"duration",
     "P(?:[0-9]{1,6}W|(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|"
     "[0-9]{1,6}D)(?:T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|"
     "[0-9]{1,6}S))?|T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M"
     "(?:[0-9]{1,6}S)?|[0-9]{1,6}S))"},
    {"email", "[a-zA-Z0-9_+-]{1,32}(?:\\.[a-zA-Z0-9_+-]{1,16}){0,1}@" STRETTO_LABEL
              "(?:\\.[a-zA-Z0-9]{2,16}){1,2}"},
    {"hostname", "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9]{1,20}){0,3}"},
    {"ipv4", STRETTO_BYTE "(?:\\." STRETTO_BYTE "){3}"},
    {"ipv6", "(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"json-pointer", "(?:/(?:[^~/]|~[01])*)*"},
    {"relative-json-pointer", "(?:0|[1-9][0-9]{0,9})(?:#|(?:/(?:[^~/]|~[01])*)*)"},
    {"uri-reference",
     "(?:[a-zA-Z][a-zA-Z0-9+.-]{0,20}://[a-zA-Z0-9.-]{1,100}(?::[0-9]{1,4})?)?"
     "(?:/[a-zA-Z0-9._~!$&'()*+,;=:@-]{0,100}){0,10}(?:\\?[a-zA-Z0-9._~=&-]{0,200})?"
     "(?:#[a-zA-Z0-9._~=&-]{0,100})?"},
    {"byte", "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
    {"uri",
     "[a-zA-Z][a-zA-Z0-9+.-]{0,20}://[a-zA-Z0-9.-]{1,100}(?::[0-9]{1,4})?"
     "(?:/[a-zA-Z0-9._~!$&'()*+,;=:@-]{0,100}){0,10}(?:\\?[a-zA-Z0-9._~=&-]{0,200})?"},
};

}  // namespace

bool is_any_format(std::string_view format) {
  static constexpr std::array<std::string_view, 8> kAny = {
      "password", "binary", "path", "file-path", "directory-path", "textarea", "markdown", "html"};
  return std::find(kAny.begin(), kAny.end(), format) != kAny.end();
}

std::optional<std::string_view> regex_of_format(std::string_view format) {
  for (const auto& [name, regex] : kFormats) {
    if (name == format) return regex;
  }
  return std::nullopt;
}

}  // namespace stretto::grammar
