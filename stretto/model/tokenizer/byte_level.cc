#include "stretto/model/tokenizer/byte_level.h"

#include <array>

#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  static constexpr std::size_t kSize = 0x100 + 68;  // 68 bytes do not stand for themselves

  std::array<char32_t, 256> character{};
  std::array<int, kSize> byte{};  // -1 outside the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.character[static_cast<std::size_t>(byte)] = c;
    alphabet.byte[c] = byte;
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char byte : bytes)
    append_utf8(out, kAlphabet.character[static_cast<unsigned char>(byte)]);
}

void append_token_bytes(std::string& out, std::string_view token) {
  const std::size_t start = out.size();
  for (std::string_view rest = token; !rest.empty();) {
    const Utf8Step step = next_utf8(rest);
    const int byte = step.code_point < Alphabet::kSize ? kAlphabet.byte[step.code_point] : -1;
    if (byte < 0) {
      out.resize(start);
      out += token;
      return;
    }
    out += static_cast<char>(byte);
    rest.remove_prefix(step.length);
  }
}

}  // namespace stretto::tokenization
