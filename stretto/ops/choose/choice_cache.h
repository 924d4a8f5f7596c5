// Choices on disk, one small JSON file each, named by the hash of a key and holding the key. Part
// of choose.h.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "stretto/ops/choose/choose.h"

namespace stretto {

// Nothing where there is none, or one that cannot be read or was made for another key.
std::optional<ConfigChoice> read_choice(const std::string& key);
// Does nothing where the cache cannot be written.
void keep_choice(const std::string& key, const ConfigChoice& choice);
// The file of the Turn to make it, in a folder that this makes.
std::filesystem::path turn_of_choice(const std::string& key);

}  // namespace stretto
