// The name of JSON for headers that pass it on. Files that look into it include json.h.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace stretto {

using Json = nlohmann::json;

}  // namespace stretto
