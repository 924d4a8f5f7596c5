// BLAKE2b with a key (RFC 7693): 256 bits that only who has the key can make for given bytes. What
// Debian's libraries of this bring is a hundred times more than is needed here.
#pragma once

#include <string>
#include <string_view>

namespace stretto {

// 64 hexadecimal digits. The key has up to 64 bytes; none makes a plain hash.
std::string keyed_hash(std::string_view key, std::string_view bytes);

}  // namespace stretto
