#include "stretto/server/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "stretto/base/printable.h"
#include "stretto/server/jinja/error.h"
#include "stretto/server/output_format.h"

namespace stretto {
namespace {

using jinja::Value;

constexpr std::size_t kMostMessages = 16384, kMostTools = 128, kMostVariables = 256;

// What constrains the output, or asks for another answer: ignoring it would answer something else.
constexpr std::array kRefused = {
    "guided_whitespace_pattern", "structural_tag",        "regex",     "ebnf",
    "bad_words",                 "use_beam_search",       "audio",     "echo",
    "logits_processors",         "thinking_token_budget", "functions", "function_call",
    "web_search_options",
};

// Roles that templates put between the marks of special tokens: not the user's words.
constexpr std::array kRoles = {"system", "developer", "user",   "assistant",
                               "tool",   "function",  "ipython"};

class ChatReader : public RequestReader {
 public:
  ChatReader(const Json& json, std::string_view body, int vocab_size,
             const CompletionLimits& limits)
      : RequestReader(json, vocab_size, limits),
        json_(json),
        body_(body),
        root_(jinja::from_json(body)) {}

  ChatRequest read(const SamplingDefaults& defaults) {
    refuse(kRefused);
    ChatRequest out;
    CompletionRequest& completion = out.completion;
    completion.model = text("model", "");
    read_lengths(out);
    completion.n = static_cast<int>(integer("n", 1, 1, limits().max_n));
    read_sampling(completion, defaults);
    read_stops(completion);
    read_output(completion);
    completion.add_special_tokens = boolean("add_special_tokens", false);
    read_logprobs(completion);
    read_modalities();
    completion.format = read_output_format(*this, json_, body_);
    read_tools(out);
    read_template(out);
    read_messages(out);
    return out;
  }

 private:
  void read_lengths(ChatRequest& out) const {
    for (const char* field : {"max_tokens", "max_completion_tokens"}) {
      if (fields().has(field)) out.max_tokens = integer(field, 1, 1, kMostTokens);
    }
    out.completion.min_tokens = integer("min_tokens", 0, 0, kMostTokens);
    if (out.max_tokens && out.completion.min_tokens > *out.max_tokens) {
      fail("min_tokens",
           fmt::format("is {}, max_tokens is {}", out.completion.min_tokens, *out.max_tokens));
    }
  }

  void read_logprobs(CompletionRequest& out) const {
    const bool wanted = boolean("logprobs", false);
    auto top = alternatives("top_logprobs");
    if (top && *top > 0 && !wanted) fail("top_logprobs", "needs logprobs");
    if (wanted) out.logprobs = top.value_or(0);
  }

  void read_modalities() const {
    const Json* modalities = fields().find("modalities");
    if (modalities == nullptr) return;
    if (!modalities->is_array() || *modalities != Json::array({"text"})) {
      fail("modalities", "only [\"text\"] is answered");
    }
  }

  const Value* field(const char* name) const {
    const Value* found = root_.as_dict().find(name);
    return found != nullptr && !found->is_none() ? found : nullptr;
  }

  void read_tools(ChatRequest& out) const {
    const Json* tools = fields().find("tools");
    const Json* choice = fields().find("tool_choice");
    out.parallel_tool_calls = boolean("parallel_tool_calls", true);
    out.only_one_call = !out.parallel_tool_calls;
    const bool is_empty = tools != nullptr && tools->is_array() && tools->empty();
    if (tools == nullptr || is_empty) {
      const bool calls_none =
          choice == nullptr || *choice == "none" || (is_empty && *choice == "auto");
      if (!calls_none) fail("tool_choice", "needs tools");
      return;
    }
    if (!tools->is_array()) fail("tools", "need a list of tools");
    if (tools->size() > kMostTools)
      fail("tools", fmt::format("{} tools, at most {}", tools->size(), kMostTools));
    bool is_any_strict = false;
    for (const Json& tool : *tools) {
      if (!tool.is_object() || tool.value("type", Json()) != "function" ||
          !tool.contains("function") || !tool["function"].is_object() ||
          !tool["function"].contains("name") || !tool["function"]["name"].is_string()) {
        fail("tools", "need {\"type\": \"function\", \"function\": {\"name\": ...}}, got " +
                          quote_json(tool));
      }
      is_any_strict |= is_strict(tool["function"]);
    }
    if (choice != nullptr && *choice == "none") return;  // the model is not told of them
    out.has_tools = true;
    out.variables.emplace_back("tools", *field("tools"));
    const std::string named = choice == nullptr ? "" : named_tool(*choice);
    out.only_one_call |= !named.empty();
    out.must_call = !named.empty() || (choice != nullptr && *choice == "required");
    out.has_strict_tools = is_any_strict && !out.must_call && !out.completion.format;
    if (!out.must_call && !out.completion.format && !is_any_strict) return;
    if (out.must_call && out.completion.format) {
      fail("tool_choice",
           "a call that has to be made does not go with " + out.completion.format->field);
    }
    const grammar::OrderedJson all = in_order(json_, body_);
    for (const grammar::OrderedJson& tool : all.at("tools")) {
      const grammar::OrderedJson& function = tool.at("function");
      const auto name = function.at("name").get<std::string>();
      if (!named.empty() && name != named) continue;
      const bool has = function.contains("parameters") && !function.at("parameters").is_null() &&
                       (!out.has_strict_tools || is_strict(function));
      out.tools.push_back({name, has ? function.at("parameters") : grammar::any_object()});
    }
    if (out.tools.empty()) {
      fail("tool_choice", "there is no tool '" + printable(named, 80) + "'");
    }
  }

  template <typename AnyJson>
  bool is_strict(const AnyJson& function) const {
    const auto at = function.find("strict");
    if (at == function.end() || at->is_null()) return false;
    if (!at->is_boolean()) fail("tools", "strict: need true or false");
    return at->template get<bool>();
  }

  // "" for any, or none.
  std::string named_tool(const Json& choice) const {
    if (choice == "auto" || choice == "required") return "";
    const Json* name = nullptr;
    if (choice.is_object() && choice.value("type", Json()) == "function") {
      const Json& holder = choice.contains("function") ? choice["function"] : choice;
      if (holder.is_object() && holder.contains("name")) name = &holder["name"];
    }
    if (name == nullptr || !name->is_string() || name->get<std::string>().empty()) {
      fail("tool_choice",
           "need 'auto', 'none', 'required' or {\"type\": \"function\", \"function\": "
           "{\"name\": ...}}, got " +
               quote_json(choice));
    }
    return name->get<std::string>();
  }

  void read_template(ChatRequest& out) {
    const std::string given = text("chat_template", "");
    const bool is_name = given.find('{') == given.npos;
    (is_name ? out.template_name : out.template_text) = given;
    out.include_reasoning = boolean("include_reasoning", true);
    out.continue_final_message = boolean("continue_final_message", false);
    const bool prompts = boolean("add_generation_prompt", !out.continue_final_message);
    if (prompts && out.continue_final_message) {
      fail("continue_final_message", "does not go with add_generation_prompt");
    }
    out.variables.emplace_back("add_generation_prompt", Value::boolean(prompts));
    for (const char* name : {"documents", "reasoning_effort"}) {
      if (const Value* value = field(name)) out.variables.emplace_back(name, *value);
    }
    const Value* more = field("chat_template_kwargs");
    if (more == nullptr) return;
    if (!more->is(Value::Kind::kDict)) fail("chat_template_kwargs", "need an object");
    if (more->as_dict().items.size() > kMostVariables) {
      fail("chat_template_kwargs",
           fmt::format("{} variables, at most {}", more->as_dict().items.size(), kMostVariables));
    }
    for (const auto& [key, value] : more->as_dict().items) {
      std::string name = jinja::to_utf8(key.as_text());
      if (name == "messages" || name == "tools") {
        fail("chat_template_kwargs", "may not have '" + name + "'");
      }
      out.variables.emplace_back(std::move(name), value);
    }
  }

  void read_messages(ChatRequest& out) {
    const Value* messages = field("messages");
    if (messages == nullptr) fail("messages", "is missing");
    if (!messages->is(Value::Kind::kList) || messages->items().empty()) {
      fail("messages", "need a list of messages");
    }
    if (messages->items().size() > kMostMessages) {
      fail("messages",
           fmt::format("{} messages, at most {}", messages->items().size(), kMostMessages));
    }
    jinja::Values made;
    for (std::size_t i = 0; i < messages->items().size(); ++i) {
      made.push_back(message(messages->items()[i], fmt::format("[{}]", i)));
    }
    if (out.continue_final_message) {
      const Value* content = made.back().as_dict().find("content");
      if (content == nullptr || !content->is_text()) {
        fail("continue_final_message", "the final message has no content to continue");
      }
      out.last_text = jinja::to_utf8(content->as_text());
    }
    out.variables.emplace_back("messages", Value::list(std::move(made)));
  }

  // As templates want it: content of parts as one text, arguments of calls as dicts.
  Value message(const Value& given, const std::string& where) const {
    auto wrong = [&](const std::string& what) { fail("messages", where + what); };
    if (!given.is(Value::Kind::kDict)) wrong(": need an object");
    const Value* role = given.as_dict().find("role");
    if (role == nullptr || !role->is_text()) wrong(": role: need a text");
    jinja::Dict out;
    for (const auto& [key, value] : given.as_dict().items) {
      const std::string name = jinja::to_utf8(key.as_text());
      if (name == "role") {
        const std::string its_role = jinja::to_utf8(value.as_text());
        bool is_known = std::find(kRoles.begin(), kRoles.end(), its_role) != kRoles.end();
        out.set(key, is_known ? Value::text(its_role) : value);
      } else if (name == "content") {
        out.set(key, content(value, where + ": content"));
      } else if (name == "tool_calls" && !value.is_none()) {
        out.set(key, tool_calls(value, where + ": tool_calls"));
      } else if (name == "tool_calls") {
        // Clients send null for none.
      } else {
        out.set(key, value);
      }
    }
    if (out.find("content") == nullptr) {
      const bool may_lack = out.find("tool_calls") != nullptr;
      if (!may_lack) wrong(": content: is missing");
      out.set(Value::text("content"), Value::none());
    }
    return Value::dict(std::move(out));
  }

  Value content(const Value& given, const std::string& where) const {
    if (given.is_text() || given.is_none()) return given;
    if (!given.is(Value::Kind::kList)) fail("messages", where + ": need a text or a list of parts");
    jinja::Text joined;
    for (const Value& part : given.items()) {
      const Value* text = nullptr;
      if (part.is(Value::Kind::kDict)) {
        const Value* type = part.as_dict().find("type");
        const std::string its_type =
            type != nullptr && type->is_text() ? jinja::to_utf8(type->as_text()) : "";
        text = part.as_dict().find(its_type == "refusal" ? "refusal" : "text");
        const bool is_text = its_type == "text" || its_type == "input_text" ||
                             its_type == "output_text" || its_type == "refusal";
        if (!is_text) {
          fail("messages",
               where + ": parts of type '" + printable(its_type, 60) + "' are not supported");
        }
      }
      if (text == nullptr || !text->is_text()) fail("messages", where + ": a part has no text");
      if (!joined.empty()) joined += U'\n';
      joined += text->as_text();
    }
    return Value::text(std::move(joined));
  }

  Value tool_calls(const Value& given, const std::string& where) const {
    if (!given.is(Value::Kind::kList)) fail("messages", where + ": need a list");
    jinja::Values out;
    for (const Value& call : given.items()) {
      const Value* function =
          call.is(Value::Kind::kDict) ? call.as_dict().find("function") : nullptr;
      if (function == nullptr || !function->is(Value::Kind::kDict)) {
        fail("messages", where + ": a call has no function");
      }
      jinja::Dict made, its_function;
      for (const auto& [key, value] : function->as_dict().items) {
        bool is_arguments = jinja::to_utf8(key.as_text()) == "arguments";
        its_function.set(key, is_arguments ? arguments(value) : value);
      }
      for (const auto& [key, value] : call.as_dict().items) {
        bool is_function = jinja::to_utf8(key.as_text()) == "function";
        made.set(key, is_function ? Value::dict(its_function) : value);
      }
      out.push_back(Value::dict(std::move(made)));
    }
    return Value::list(std::move(out));
  }

  // A text that is no object stays one: what was answered before can always be sent back.
  static Value arguments(const Value& given) {
    if (!given.is_text()) return given;
    const std::string text = jinja::to_utf8(given.as_text());
    if (text.find_first_not_of(" \t\r\n") == text.npos) return Value::dict({});
    try {
      if (parse_json(text, "arguments").is_object()) return jinja::from_json(text);
    } catch (const UserError&) {  // what a model wrote that was cut off, or erred
    }
    return given;
  }

  const Json& json_;
  std::string_view body_;
  Value root_;
};

}  // namespace

ChatRequest parse_chat_request(std::string_view body, const SamplingDefaults& defaults,
                               int vocab_size, const CompletionLimits& limits) {
  const Json json = request_object(body);
  try {
    return ChatReader(json, body, vocab_size, limits).read(defaults);
  } catch (const jinja::TemplateError& e) {
    throw ApiError(400, std::string("request: ") + e.what());
  }
}

}  // namespace stretto
