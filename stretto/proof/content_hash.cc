#include "stretto/proof/content_hash.h"

#include <fmt/format.h>

#include <cstdint>

namespace stretto {

std::string content_hash(std::string_view text) {
  __extension__ using Wide = unsigned __int128;
  constexpr Wide kPrime = (Wide{1} << 88) | 0x13B;
  Wide hash = (Wide{0x6C62272E07BB0142u} << 64) | 0x62B821756295C58Du;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return fmt::format("{:016x}{:016x}", static_cast<std::uint64_t>(hash >> 64),
                     static_cast<std::uint64_t>(hash));
}

}  // namespace stretto
