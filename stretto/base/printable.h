// Text from a hostile file or request made fit for one line of an error message.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

namespace stretto {

// Control bytes and invalid UTF-8 become \xNN; more than `max_bytes` of input are cut and end in
// "...".
std::string printable(std::string_view text, std::size_t max_bytes = 120);

// what() of it in words for users: of want of memory, too.
std::string reason_of(const std::exception& error);

}  // namespace stretto
