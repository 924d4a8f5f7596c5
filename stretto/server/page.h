// The page for people at `/`: the files of page/, which the build puts into the binary. They ask
// for nothing outside this server, and their headers forbid it.
#pragma once

#include <span>
#include <string_view>

#include "stretto/server/http.h"

namespace stretto {

struct PageFile {
  const char* path;  // "/", "/openapi.json", "/page/main.js"
  const char* content_type;
  std::string_view text;
};
std::span<const PageFile> page_files();

// A Content-Security-Policy of this server alone, and what goes with it.
HttpHeaders page_headers();

}  // namespace stretto
