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

#include "stretto/testing/harness/op_case.h"

namespace stretto {

inline constexpr std::size_t kGuardBytes = 256;  // around each tensor whose memory is the caller's
inline constexpr std::byte kGuard{0xA5};
inline constexpr std::uint8_t kPoison = 0xFF;  // a NaN in every float format, -1 in integers

// What the tensors of `rank` hold before a launch of the case [tensor][bytes of its bound shape]:
// inputs and state the values of the case, random ones for a float without any, zero in what these
// leave; outputs poison; buffers nothing.
using TensorsAtFirst = std::vector<std::vector<std::byte>>;
TensorsAtFirst tensors_at_first(const OpCase& op_case, int rank);

// What a rank's tensors hold after a launch.
using TensorBytes = std::function<std::span<const std::byte>(std::size_t tensor_idx)>;

// "" or which output or state the cases of a program do not say the values of, or with so wide a
// tolerance that zeros would pass for half of them (looked at where launches have an eighth of its
// elements or more). Tensors that OpCase::unchecked names have none.
std::string check_expected(std::span<const OpCase> cases);

// First difference between what a launch from tensors_at_first left on `rank` and what the
// reference expects, or "".
std::string compare_case(const OpCase& op_case, int rank, const TensorBytes& bytes);

// "" or which write of a launch went where none may: into an input, or past an output's run-time
// shape.
std::string check_untouched(const OpCase& op_case, int rank, const TensorsAtFirst& first,
                            const TensorBytes& bytes);

// "" or where the guard zones of `storage`, kGuardBytes + tensor + kGuardBytes, were written to.
std::string check_guards(std::span<const std::byte> storage, const std::string& tensor);

// Bits that the first launch of one rank left in outputs and state, which every later one from
// tensors_at_first must repeat.
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
