// Calls of tools, read while a model writes them in the form of its family. A call is told as soon
// as its name is known and its arguments begin; the arguments follow piece by piece, as they are
// written. chat_output.h finds where calls begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stretto {

enum class ToolFormat : std::uint8_t {
  kNone,
  kHermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>; Qwen's, too
  kLlama3,   // the whole answer is {"name": ..., "parameters": {...}}, or several with ; between
  kMistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name[ARGS]{...}
};

// The tag before a call.
std::string_view call_tag(ToolFormat format);
inline constexpr std::string_view kToolCallEnd = "</tool_call>";  // Hermes'
inline constexpr std::string_view kArgumentsTag = "[ARGS]";       // Mistral's, after a name

// A call, or a piece of its arguments.
struct ToolCall {
  std::string name;
  std::string arguments;  // JSON, as the model wrote it
  bool goes_on = false;   // more arguments of the call before; no name
};

// Where a JSON text, list or object ends, a character at a time.
struct JsonNesting {
  // From its first character on; true for its last one.
  bool take(char c);

  int depth = 0;
  bool in_text = false, is_escaped = false;
};

// The fields of a call's JSON object, a character at a time.
class CallObject {
 public:
  enum class Step : std::uint8_t {
    kNothing,
    kBegins,  // this character begins the arguments of the call `name()`
    kPiece,   // and this one belongs to them
    kEnd,     // this one ends the object
    kBroken,  // this one cannot stand here
  };
  // After the first brace.
  Step take(char c);

  const std::string& name() const { return name_; }
  bool has_begun() const { return has_begun_; }
  bool in_text() const { return nesting_.in_text; }
  // At the end, where the arguments did not begin on the way: whether it is a call, and which.
  bool is_call(ToolCall& out) const;

 private:
  enum class State : std::uint8_t { kKey, kInKey, kColon, kValue, kInValue, kWord, kComma };

  bool is_arguments() const;
  Step begin_value(char c);
  Step end_value();

  State state_ = State::kKey;
  std::string key_, value_, name_, arguments_;
  JsonNesting nesting_;  // of the key or value that is read
  bool has_arguments_ = false, has_begun_ = false, in_arguments_ = false;
};

class ToolCallReader {
 public:
  explicit ToolCallReader(ToolFormat format) : format_(format) {}

  enum class Is : std::uint8_t {
    kOpen,  // more text may change it
    kDone,  // the calls have ended; `held` begins with what follows
    kNone,  // the first size() bytes of `held` are no call
  };
  // `held` begins with white space, if any, and the tag, and has grown since the last time; what
  // is told is taken away from its front. The result is the same however the text comes.
  Is read(std::string& held, bool is_end, std::vector<ToolCall>& calls);
  std::size_t size() const { return at_; }

 private:
  enum class State : std::uint8_t {
    kTag,
    kBegin,      // of an object, a list or a name
    kName,       // Mistral's second form
    kAfterName,  // the tag, perhaps, and a brace
    kArguments,  // after a name
    kObject,
    kBetween,  // one call and the next
  };

  Is read_on(std::string_view held, bool is_end, std::vector<ToolCall>& calls);
  bool step(std::string_view held, bool is_end, std::vector<ToolCall>& calls, Is& is);
  bool step_begin(char c, Is& is);
  bool step_name(std::string_view held, bool is_end, std::vector<ToolCall>& calls, Is& is);
  bool step_object(std::string_view held, bool is_end, std::vector<ToolCall>& calls, Is& is);
  bool step_between(std::string_view held, bool is_end, Is& is);
  bool take_cut_end(std::string_view held, bool is_end);
  void add(std::vector<ToolCall>& calls, char c);

  ToolFormat format_;
  State state_ = State::kTag;
  CallObject object_;
  std::string name_;
  JsonNesting arguments_;  // after a name
  std::size_t at_ = 0, told_ = 0;
  bool is_list_ = false;
  bool has_call_ = false;  // that has ended
};

}  // namespace stretto
