// The command that this process runs, for what it writes about a run.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

namespace stretto::bench {

// As it was typed, but for the folder of the program.
inline std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t end = text.find('\0');
  const std::size_t slash = text.substr(0, end).rfind('/');
  if (slash != std::string::npos) text.erase(0, slash + 1);
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::ranges::replace(text, '\0', ' ');
  return text;
}

}  // namespace stretto::bench
