#include "stretto/device/device_sources.h"

#include <set>
#include <sstream>
#include <string_view>

namespace stretto {

struct EmbeddedHeader {
  std::string_view path, text;
};
// Written by CMake from the headers of this folder and of abi/.
extern const EmbeddedHeader kEmbeddedHeaders[];
extern const int kNumEmbeddedHeaders;

namespace {

constexpr std::string_view kInclude = "#include \"stretto/";

void append(std::string_view text, std::set<std::string>& seen, std::string& out) {
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    if (line == "#pragma once") continue;
    if (line.compare(0, kInclude.size(), kInclude) != 0) {
      out += line + "\n";
      continue;
    }
    std::string path = line.substr(10, line.rfind('"') - 10);
    if (!seen.insert(path).second) continue;
    bool found = false;
    for (int i = 0; i < kNumEmbeddedHeaders; ++i) {
      if (kEmbeddedHeaders[i].path != path) continue;
      append(kEmbeddedHeaders[i].text, seen, out);
      found = true;
    }
    if (!found) out += line + "\n";
  }
}

}  // namespace

std::string expand_includes(const std::string& source) {
  std::set<std::string> seen;
  std::string out;
  append(source, seen, out);
  return out;
}

}  // namespace stretto
