// What a request may ask for, whatever its fields are called, and the rules that say so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stretto/server/grammar/json_schema.h"
#include "stretto/server/grammar/vocabulary.h"

namespace stretto::grammar {

// Calls of tools in the form that a model's family writes.
struct AskedCalls {
  struct Tool {
    std::string name;
    OrderedJson parameters;  // a schema
  };
  // Of a call: before the tool's name, between it and the arguments, after them; then around all.
  std::string before_name, after_name, after_arguments;
  std::string begin, between, end;
  std::vector<std::string> tags;  // in these, which may be special tokens of the model
  // The tag behind which free text goes on as a call; `begin`, or else `before_name`, may begin
  // with it.
  std::string tag;
  bool begins_answers = false;  // an answer that begins with a brace is a call, too
  bool quotes_names = true;     // names are written as in JSON
  std::vector<Tool> tools;      // none: no calls
  bool only_one = false;
};

struct Asked {
  enum class Kind : std::uint8_t { kObject, kSchema, kRegex, kChoice, kGbnf, kCalls, kFree };
  enum class Thinking : std::uint8_t {
    kNone,
    kMay,   // <think>...</think> may come first
    kOpen,  // the prompt has begun it
  };
  // kObject: any JSON object; kCalls: calls alone; kFree: any text, in which calls are as they
  // have to be
  Kind kind = Kind::kObject;
  OrderedJson schema = {};  // of kSchema
  std::string text = {};    // of kRegex and kGbnf
  std::vector<std::string> choices = {};
  bool is_compact = false;  // JSON without space
  AskedCalls calls = {};    // beside forms of JSON and text: what may come in their place
  Thinking thinking = Thinking::kNone;

  // The same for the same, and nothing else.
  std::string key() const;
};

// GrammarError.
Rules rules_of(const Asked& asked, const Vocabulary& vocabulary, Budget& budget);

}  // namespace stretto::grammar
