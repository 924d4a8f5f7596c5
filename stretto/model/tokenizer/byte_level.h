// The byte-level alphabet of GPT-2: one printable character for each of the 256 bytes, in which
// vocabularies and merges of byte-level BPE are written. Printable Latin-1 characters stand for
// themselves, the other bytes for U+0100 and up.
#pragma once

#include <string>
#include <string_view>

namespace stretto::tokenization {

void append_byte_level(std::string& out, std::string_view bytes);

// The bytes that `token` stands for; a token with any character outside the alphabet stands for its
// own UTF-8.
void append_token_bytes(std::string& out, std::string_view token);

}  // namespace stretto::tokenization
