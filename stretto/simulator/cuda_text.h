// CUDA C++ as the code generator writes it, to C++ for the host: inline PTX becomes calls of the
// functions of device_code.h, one per instruction; kernels get an entry that the machine calls.
#pragma once

#include <string>
#include <vector>

namespace stretto::simulator {

struct KernelText {
  std::string name;
  int max_threads = 1024;  // __launch_bounds__
};

struct HostText {
  std::string text;
  std::vector<KernelText> kernels;
};

// std::invalid_argument, with what it stopped at, for text outside of that.
HostText host_text(const std::string& cuda);

// Statements that do what the PTX of one asm statement does; its operands are o0, o1, ...
std::string instructions_text(const std::string& ptx);

// The entry of a kernel: void(void** arguments). And where it says how long each argument is: zero
// ends the list. And how many threads it allows, an int.
std::string entry_name(const std::string& kernel);
std::string sizes_name(const std::string& kernel);
std::string threads_name(const std::string& kernel);

}  // namespace stretto::simulator
