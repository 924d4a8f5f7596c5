// Random templates over random values. Input: the template, a NUL byte, JSON of the variables. What
// is refused by a UserError is fine; anything else is a finding.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/server/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace jinja = stretto::jinja;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view json = end == input.npos
                                    ? R"({"messages": [{"role": "user", "content": "a <s> b"}]})"
                                    : input.substr(end + 1);
  try {
    stretto::parse_json(json, "fuzz");
    const jinja::Value value = jinja::from_json(json);
    std::vector<std::pair<std::string, jinja::Value>> variables;
    if (value.is(jinja::Value::Kind::kDict)) {
      for (const auto& [key, held] : value.as_dict().items) {
        variables.emplace_back(jinja::to_utf8(key.as_text()), held);
      }
    }
    const auto parsed = jinja::Template::parse(input.substr(0, end), "fuzz");
    parsed.render(variables, {.max_steps = 200'000, .max_text = 2'000'000});
  } catch (const stretto::UserError&) {
  }
  return 0;
}
