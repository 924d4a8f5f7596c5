// A 128-bit hash of text, for naming cache entries by content. Not cryptographic: a cache directory
// belongs to the user, and whoever can write there can write verdicts too.
#pragma once

#include <string>
#include <string_view>

namespace stretto {

// 32 hexadecimal digits. FNV-1a over 128 bits (Fowler, Noll, Vo; RFC 9923).
std::string content_hash(std::string_view text);

}  // namespace stretto
