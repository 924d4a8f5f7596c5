// JSON whose objects keep their keys in the order of the text: a schema's is that of the answer.
#pragma once

#include <nlohmann/json.hpp>

namespace stretto::grammar {

using OrderedJson = nlohmann::ordered_json;

}  // namespace stretto::grammar
