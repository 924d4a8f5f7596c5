// Runs an OpCase on the GPUs of a world and compares with its reference, as run_case.h does on CPU
// ranks: the same inputs, outputs poisoned first, guard zones around every tensor, several
// launches, the same bits each time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stretto/gpu/gpu_instance.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/harness/op_case.h"

namespace stretto {

// The caller's tensors of an OpCase on every rank, with what they hold at first. Symmetric and
// local ones are alike here: any rank can address either. In a world of processes every one makes
// it, and has the bytes of its own ranks; what waits for all ranks is collective.
class GpuCaseMemory {
 public:
  GpuCaseMemory(const GpuWorld& world, const OpCase& op_case);

  const GpuLaunchArgs& args() const { return args_; }
  // Both return when every rank's copies are done. Outputs become NaN (all bits set).
  void poison_outputs();
  void download();  // for view() and check_guards()

  std::span<const std::byte> view(int rank, std::size_t tensor_idx) const;
  // "" or which write left its tensor on `rank`.
  std::string check_guards(int rank) const;

 private:
  struct Storage {
    SymmetricGpuMemory memory;                 // none for a buffer, which the instance owns
    std::vector<std::vector<std::byte>> host;  // [rank], guards included
  };

  void allocate(std::size_t tensor_idx);

  const GpuWorld& world_;
  const OpCase& case_;
  std::vector<Storage> storage_;  // [tensor]
  GpuLaunchArgs args_;
};

struct GpuRunOptions {
  int launches = 3;
  int back_to_back = 1;    // launches enqueued without waiting before each comparison
  std::uint64_t seed = 0;  // named in what is returned
  bool require_proof = false;
};

// "" when every launch gave the expected values on all ranks, the same bits each time; else what
// differed first, with the seed, or on which rank of another process. Errors of compilation and
// Fault are thrown.
std::string run_gpu_case(GpuWorld& world, const OpCase& op_case, const GpuRunOptions& options = {});

}  // namespace stretto
