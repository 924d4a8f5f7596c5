// Renders templates for tests/jinja_test.py. Reads lines of JSON {"templates", "variables"}, writes
// for each a list that has for each template {"text", "pieces": [[text, is the user's], ...]} or
// {"error"}.
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/server/jinja/template.h"

namespace {

namespace jinja = stretto::jinja;
using Variables = std::vector<std::pair<std::string, jinja::Value>>;

// Kept from one line to the next, as a server keeps them.
const jinja::Template& parsed(const std::string& source) {
  static std::map<std::string, jinja::Template> kept;
  auto at = kept.find(source);
  if (at != kept.end()) return at->second;
  if (kept.size() >= 50) kept.clear();
  return kept.emplace(source, jinja::Template::parse(source, "template")).first->second;
}

stretto::Json rendered(const std::string& source, const Variables& variables) {
  try {
    stretto::Json pieces = stretto::Json::array();
    std::string text;
    for (const jinja::Piece& piece : parsed(source).render(variables)) {
      pieces.push_back({piece.text, piece.is_user});
      text += piece.text;
    }
    return {{"text", text}, {"pieces", pieces}};
  } catch (const stretto::UserError& e) {
    return {{"error", e.what()}};
  }
}

stretto::Json answer(const std::string& line) {
  const stretto::Json request = stretto::parse_json(line, "line");
  const jinja::Value value = jinja::from_json(line);
  Variables variables;
  for (const auto& [key, held] : value.as_dict().find("variables")->as_dict().items) {
    variables.emplace_back(jinja::to_utf8(key.as_text()), held);
  }
  stretto::Json out = stretto::Json::array();
  for (const auto& source : request.at("templates")) {
    out.push_back(rendered(source.get<std::string>(), variables));
  }
  return out;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::puts(stretto::to_line(answer(line)).c_str());
    std::fflush(stdout);
  }
}
