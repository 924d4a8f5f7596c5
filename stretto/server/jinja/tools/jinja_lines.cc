// Renders templates for tests/jinja_test.py. Reads lines of JSON {"template", "variables"}, writes
// for each {"text", "pieces": [[text, is the user's], ...]} or {"error"}.
#include <cstdio>
#include <iostream>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/server/jinja/template.h"

namespace {

stretto::Json answer(const std::string& line) {
  namespace jinja = stretto::jinja;
  try {
    const stretto::Json request = stretto::parse_json(line, "line");
    const jinja::Value value = jinja::from_json(line);
    const auto parsed =
        jinja::Template::parse(request.at("template").get<std::string>(), "template");
    std::vector<std::pair<std::string, jinja::Value>> variables;
    for (const auto& [key, held] : value.as_dict().find("variables")->as_dict().items) {
      variables.emplace_back(jinja::to_utf8(key.as_text()), held);
    }
    stretto::Json pieces = stretto::Json::array();
    std::string text;
    for (const jinja::Piece& piece : parsed.render(variables)) {
      pieces.push_back({piece.text, piece.is_user});
      text += piece.text;
    }
    return {{"text", text}, {"pieces", pieces}};
  } catch (const stretto::UserError& e) {
    return {{"error", e.what()}};
  }
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::puts(stretto::to_line(answer(line)).c_str());
    std::fflush(stdout);
  }
}
