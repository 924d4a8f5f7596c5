// Random tokenizer.json files and texts. Input: the file, a NUL byte, the text. A file that is
// refused by a UserError is fine; so is a text that its expressions give up on. Anything else is a
// finding.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/model/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view text = end == input.npos ? "some text 42 <s>" : input.substr(end + 1);
  try {
    const auto tokenizer = stretto::Tokenizer::parse(input.substr(0, end), std::nullopt, "fuzz");
    const auto ids = tokenizer.encode(text);
    stretto::StreamDecoder stream(tokenizer);
    for (const int id : ids) stream.push(id);
    stream.finish();
    tokenizer.decode(ids, false);
  } catch (const stretto::UserError&) {
  }
  return 0;
}
