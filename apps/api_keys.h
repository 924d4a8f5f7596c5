// Keys of the OpenAI API in a file, as `stretto serve` asks for them and `stretto load` shows them.
#pragma once

#include <string>
#include <vector>

namespace stretto {

// One key a line; empty lines count for nothing. UserError where there is none.
std::vector<std::string> read_keys(const std::string& path);

}  // namespace stretto
