// The device headers as text, embedded in the binary, so that a kernel compiles without a checkout.
#pragma once

#include <string>

namespace stretto {

// `source` with each include of a stretto/ header replaced by that header's text, once. An unknown
// header stays as it is and the compiler names it.
std::string expand_includes(const std::string& source);

}  // namespace stretto
