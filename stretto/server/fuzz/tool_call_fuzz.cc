// What a model may write, cut into pieces: however it comes, each parser tells the same reasoning,
// content and calls, and without calls nothing is lost. The first bytes say how it is cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stretto/server/chat_output.h"

namespace {

using stretto::ChatDelta;
using stretto::ChatOutput;
using stretto::ToolFormat;

void expect(bool holds) {
  if (!holds) __builtin_trap();
}

bool are_same(const ChatDelta& a, const ChatDelta& b) {
  if (a.reasoning != b.reasoning || a.content != b.content || a.calls.size() != b.calls.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.calls.size(); ++i) {
    if (a.calls[i].name != b.calls[i].name || a.calls[i].arguments != b.calls[i].arguments) {
      return false;
    }
  }
  return true;
}

// A call is told with its name, and goes on only after it has begun.
void check_news(const ChatDelta& news, bool has_call) {
  for (const stretto::ToolCall& call : news.calls) {
    expect(call.goes_on ? has_call && call.name.empty() : !call.name.empty());
    has_call = true;
  }
}

ChatDelta in_pieces(const ChatOutput::Options& options, std::string_view text, std::uint32_t seed) {
  ChatOutput output(options);
  ChatDelta all;
  auto add = [&](const ChatDelta& news) {
    check_news(news, !all.calls.empty());
    all.add(news);
  };
  while (!text.empty()) {
    seed = seed * 1664525 + 1013904223;
    const std::size_t size = 1 + (seed >> 16) % (seed % 5 == 0 ? 20 : 3);
    add(output.push(text.substr(0, size)));
    text.remove_prefix(std::min(size, text.size()));
  }
  add(output.finish());
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const auto seed = static_cast<std::uint32_t>(data[0] | data[1] << 8);
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  const bool has_reasoning = (data[2] & 1) != 0, begins_in_it = (data[2] & 2) != 0;
  for (ToolFormat format :
       {ToolFormat::kNone, ToolFormat::kHermes, ToolFormat::kLlama3, ToolFormat::kMistral}) {
    const ChatOutput::Options options{.tools = format,
                                      .has_reasoning = has_reasoning,
                                      .begins_in_reasoning = has_reasoning && begins_in_it};
    ChatOutput output(options);
    ChatDelta whole = output.push(text);
    whole.add(output.finish());
    expect(are_same(whole, in_pieces(options, text, seed)));
    if (whole.calls.empty() && !has_reasoning) expect(whole.content == text);
    std::size_t told = whole.reasoning.size() + whole.content.size();
    for (const stretto::ToolCall& call : whole.calls) told += call.name.size();
    expect(told <= text.size());
  }
  return 0;
}
