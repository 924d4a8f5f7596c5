// tokenizer_lines DIR: the tokenizer of DIR on many texts in one run, for
// tools/compare_tokenizers.py. In:  frames of a 4-byte little-endian length and that many bytes of
// text. Out: per frame one JSON line {"ids": [...], "plain": [...], "text": ..., "shown": ...}:
// encode() with and without
//      special tokens, decode() of `ids` without and with them. The streamed text must equal
//      `text`, or it exits with 70.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "stretto/base/json.h"
#include "stretto/model/tokenizer/tokenizer.h"

namespace {

bool read_frame(std::string& text) {
  unsigned char head[4];
  if (!std::cin.read(reinterpret_cast<char*>(head), sizeof head)) return false;
  const std::uint32_t length =
      head[0] | (head[1] << 8) | (head[2] << 16) | (std::uint32_t{head[3]} << 24);
  text.resize(length);
  return static_cast<bool>(std::cin.read(text.data(), length));
}

std::string streamed(const stretto::Tokenizer& tokenizer, const std::vector<int>& ids) {
  stretto::StreamDecoder stream(tokenizer);
  std::string text;
  for (const int id : ids) text += stream.push(id);
  return text + stream.finish();
}

int run(const char* dir) {
  const auto tokenizer = stretto::Tokenizer::load(dir);
  std::string text;
  while (read_frame(text)) {
    const auto ids = tokenizer.encode(text);
    const std::string decoded = tokenizer.decode(ids);
    if (streamed(tokenizer, ids) != decoded) {
      std::fprintf(stderr, "streamed text differs for %s\n", stretto::Json(decoded).dump().c_str());
      return 70;
    }
    const stretto::Json line{{"ids", ids},
                             {"plain", tokenizer.encode(text, {.add_special_tokens = false})},
                             {"split", tokenizer.encode(text, {.split_special_tokens = true})},
                             {"text", decoded},
                             {"shown", tokenizer.decode(ids, false)}};
    std::cout << line.dump() << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_lines DIR < FRAMES\n");
    return 2;
  }
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
