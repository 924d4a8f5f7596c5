// The files of machines/, which travel in the binary as text.
#pragma once

#include <span>
#include <string_view>

namespace stretto::predict {

struct BuiltinMachine {
  std::string_view name, text;
};
std::span<const BuiltinMachine> builtin_machine_texts();

}  // namespace stretto::predict
