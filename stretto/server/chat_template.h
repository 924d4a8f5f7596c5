// A model's chat templates: found in its directory, or given by a file; rendered with a
// conversation and tokenized so that nobody's words become a special token. Before
// chat_completion.h.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stretto/model/tokenizer/tokenizer.h"
#include "stretto/server/jinja/template.h"

namespace stretto {

// The prompt of a conversation.
struct ChatPrompt {
  std::vector<jinja::Piece> pieces;
  std::string text;
  std::vector<int> ids;
};

using ChatVariables = std::vector<std::pair<std::string, jinja::Value>>;

class ChatTemplates {
 public:
  // chat_template.jinja and additional_chat_templates/, else chat_template.json, else
  // tokenizer_config.json's chat_template; `file` in place of all of them. UserError for files that
  // cannot be read, and for a `file` that is no template; a model's own template that is not one
  // ends each chat instead.
  static ChatTemplates load(const std::filesystem::path& directory, const std::string& file);

  // "" where there is one that can be rendered, else why not.
  const std::string& missing() const { return missing_; }
  // The one for this request, by name or by whether there are tools. UserError.
  const jinja::Template& choose(const std::string& name, bool has_tools) const;
  // Names and sources, for what tells tools by the template.
  const std::map<std::string, std::string>& sources() const { return sources_; }

  // "bos_token", "eos_token" and the like, as tokenizer_config.json names them.
  const ChatVariables& special_tokens() const { return special_tokens_; }

 private:
  std::map<std::string, std::string> sources_;
  std::map<std::string, jinja::Template> templates_;
  ChatVariables special_tokens_;
  std::string missing_;
};

// Throws what is wrong with a text of so many bytes, before it is tokenized.
using CheckText = std::function<void(std::size_t bytes)>;

// Renders and tokenizes. UserError naming the template and its line.
ChatPrompt render_chat(const jinja::Template& chosen, const ChatVariables& variables,
                       const Tokenizer& tokenizer, bool add_special_tokens,
                       const CheckText& check = {});

}  // namespace stretto
