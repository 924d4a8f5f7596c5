// Files of directories that users download, copy and link together. What stands under a name there
// need not be what the name says: a pipe, a link whose target was never fetched, or the few lines
// that git leaves in the place of a large file. Readers of model directories read through here.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace stretto {

// UserError unless `path` is a directory; one of the hub's cache is told which part is meant.
void check_model_directory(const std::filesystem::path& path);

// Nothing has this name. A link to something that is missing is there, and so is what cannot be
// examined: reading it tells what is wrong.
bool is_absent(const std::filesystem::path& path);

// UserError naming the path unless it is a regular file, or a link to one. Never waits, as opening
// a pipe would.
void check_regular_file(const std::filesystem::path& path);

// UserError naming `where` when `bytes` are what git leaves in the place of a large file.
void refuse_stand_in(std::string_view bytes, const std::string& where);

// All of it as bytes: what passes both checks and has at most `max_bytes`; else UserError.
std::string read_downloaded_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace stretto
