// A chat template: Jinja as Python's jinja2 has it where transformers sets it up, byte for byte,
// for the part of the language that templates of chat models use (docs/guide/chat_templates.md).
// Files are hostile until parsed, and so is what they do: steps, text and depth are bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/server/jinja/evaluator.h"
#include "stretto/server/jinja/text.h"
#include "stretto/server/jinja/value.h"

namespace stretto::jinja {

// Immutable and safe to share between threads; copies share the tree.
class Template {
 public:
  // UserError "NAME: line 3: ..." for what is wrong or not supported.
  static Template parse(std::string_view source, std::string name);

  // The text, in pieces by origin: what came with marked values is the user's. The same UserErrors.
  std::vector<Piece> render(const std::vector<std::pair<std::string, Value>>& variables,
                            const RenderLimits& limits = {}) const;
  // Whether the template mentions the variable anywhere.
  bool uses(const std::string& name) const;

  const std::string& name() const { return name_; }

 private:
  Template(std::shared_ptr<const Statements> statements, std::string name)
      : statements_(std::move(statements)), name_(std::move(name)) {}

  std::shared_ptr<const Statements> statements_;
  std::string name_;
};

}  // namespace stretto::jinja
