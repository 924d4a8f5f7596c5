#pragma once

#include <concepts>
#include <cstddef>

namespace stretto {

// A number that is not negative as containers index with it.
constexpr std::size_t at(std::integral auto i) { return static_cast<std::size_t>(i); }

}  // namespace stretto
