#include "stretto/server/jinja/template.h"

#include "stretto/server/jinja/builtins.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/jinja/lexer.h"
#include "stretto/server/jinja/parser.h"

namespace stretto::jinja {
namespace {

constexpr std::size_t kMostBytes = std::size_t{4} << 20;

[[noreturn]] void rethrow(const TemplateError& e, const std::string& name) {
  throw UserError(fmt::format("{}: line {}: {}", name, e.line(), e.what()));
}

}  // namespace

Template Template::parse(std::string_view source, std::string name) {
  if (source.size() > kMostBytes) {
    throw UserError(fmt::format("{}: {} bytes, at most {}", name, source.size(), kMostBytes));
  }
  try {
    auto statements = std::make_shared<const Statements>(jinja::parse(lex(to_text(source))));
    return {std::move(statements), std::move(name)};
  } catch (const TemplateError& e) {
    rethrow(e, name);
  }
}

std::vector<Piece> Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                                    const RenderLimits& limits) const {
  Evaluator evaluator(limits);
  for (const auto& [name, value] : variables) evaluator.set_global(name, value);
  try {
    return to_pieces(evaluator.render(*statements_));
  } catch (const TemplateError& e) {
    rethrow(e, name_);
  }
}

bool Template::uses(const std::string& name) const { return uses_name(*statements_, name); }

}  // namespace stretto::jinja
