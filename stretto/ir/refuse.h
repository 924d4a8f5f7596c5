// How a pass says that a role, or GPUs, cannot have what is asked for. Nothing is dropped in
// silence: a program that runs has every agent, pipe and order of products that its resources name,
// and defaults and choosers offer no other.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "stretto/ir/program.h"

namespace stretto {

// A field of Resource, by its name there, and what the role has there.
struct AskedFor {
  const char* field;
  std::string value;
};

// Throws the UserError: the field with its value, the role and where it stands, why not, and the
// shapes of the program's inputs and outputs.
[[noreturn]] void refuse(const Program& program, const Role& role, const AskedFor& asked,
                         std::string_view reason);
[[noreturn]] inline void refuse(const Program& program, const Role& role, const char* field,
                                std::int64_t value, std::string_view reason) {
  refuse(program, role, {field, fmt::format("{}", value)}, reason);
}

// UserError for a tensor of float64, which only CPU ranks have: of what is for GPUs.
void refuse_float64(const Program& program);

// Behind what a program for GPUs cannot have.
inline constexpr const char* kCpuRanksOnly = "which CPU ranks compute with and GPUs do not";

}  // namespace stretto
