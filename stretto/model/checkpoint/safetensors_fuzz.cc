// libFuzzer: arbitrary bytes as a safetensors file. Whatever is accepted must be safe to read to
// its last byte.
#include <cstring>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/model/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // An exact copy: reading past its end is seen by AddressSanitizer.
  std::vector<std::byte> file(size);
  if (size != 0) std::memcpy(file.data(), data, size);
  try {
    std::size_t total = 0;
    for (const auto& [name, view] : stretto::parse_safetensors(file, "fuzz")) {
      unsigned sum = 0;
      for (std::size_t i = 0; i < view.size_bytes; ++i) sum += static_cast<unsigned>(view.data[i]);
      volatile unsigned sink = sum;
      (void)sink;
      total += view.size_bytes;
    }
    if (total > size) __builtin_trap();
  } catch (const stretto::UserError&) {
  }
  return 0;
}
