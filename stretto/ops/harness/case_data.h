// What of an OpCase is the same wherever it runs, on CPU ranks (run_case.h) or GPUs
// (gpu_harness/gpu_case.h): the bytes that the caller's tensors hold before a launch, and the
// verdict on those that it leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "stretto/ops/harness/op_case.h"

namespace stretto {

inline constexpr std::size_t kGuardBytes = 256;  // around each tensor whose memory is the caller's
inline constexpr std::byte kGuard{0xA5};
inline constexpr std::uint8_t kPoison = 0xFF;  // a NaN in every float format, -1 in integers

// What the tensor holds on `rank` at first: the values of the case, random ones for a float input
// or state without any, zero in what these leave and in outputs. Its whole bound shape.
std::vector<std::byte> initial_bytes(const OpCase& op_case, int rank, std::size_t tensor_idx);

// What a rank's tensors hold after a launch.
using TensorBytes = std::function<std::span<const std::byte>(std::size_t tensor_idx)>;

// First difference between what a launch left on `rank` and what the reference expects, or "".
// State is compared after the first launch only.
std::string compare_case(const OpCase& op_case, int rank, int launch_idx, const TensorBytes& bytes);

// "" or where the guard zones of `storage`, kGuardBytes + tensor + kGuardBytes, were written to.
std::string check_guards(std::span<const std::byte> storage, const std::string& tensor);

// Output bits of the first launch of one rank, which every later one must repeat.
class FirstBits {
 public:
  std::string check(const OpCase& op_case, const TensorBytes& bytes);

 private:
  std::vector<std::vector<std::byte>> bits_;
};

// Whether launches differ from each other, because state goes from one to the next.
bool keeps_state(const Program& program);

// Whether ranks tell each other anything, at schedule level: who is told waits for it, or launches
// could not repeat.
bool ranks_meet(const Program& schedule);

}  // namespace stretto
