// Random tokenizer.json files and texts. Input: the file, a NUL byte, the text and maybe another
// NUL byte and a tokenizer_config.json. A file that is refused by a UserError is fine; so is a text
// that its expressions abort on. Anything else is a finding.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/model/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view rest = end == input.npos ? "some text 42 <s>" : input.substr(end + 1);
  const std::size_t text_end = rest.find('\0');
  const std::string_view text = rest.substr(0, text_end);
  std::optional<std::string> config;
  if (text_end != rest.npos) config = rest.substr(text_end + 1);
  try {
    const auto tokenizer = stretto::Tokenizer::parse(input.substr(0, end), config, "fuzz");
    const auto ids = tokenizer.encode(text);
    stretto::StreamDecoder stream(tokenizer);
    for (const int id : ids) stream.push(id);
    stream.finish();
    tokenizer.decode(ids, false);
  } catch (const stretto::UserError&) {
  }
  return 0;
}
