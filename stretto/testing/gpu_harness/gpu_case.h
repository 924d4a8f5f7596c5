// Runs OpCases on the GPUs of a world and compares with their references, as run_case.h does on CPU
// ranks: the same inputs, outputs poisoned first, guard zones around every tensor, several
// launches, the same bits each time, nothing written elsewhere. And what only GPUs have: graphs,
// streams, pauses in kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stretto/gpu/gpu_world.h"
#include "stretto/launch/executable.h"
#include "stretto/testing/gpu_harness/late_inputs.h"
#include "stretto/testing/harness/case_data.h"
#include "stretto/testing/harness/op_case.h"

namespace stretto {

// The caller's tensors of an OpCase on every rank, with what they hold at first. Symmetric and
// local ones are alike here: any rank can address either. In a world of processes every one makes
// it, and has the bytes of its own ranks; what waits for all ranks is collective.
class GpuCaseMemory {
 public:
  GpuCaseMemory(const GpuWorld& world, const OpCase& op_case);

  const Args& args() const { return args_; }
  const std::vector<std::int64_t>& extents() const { return case_.extents; }
  // All return when every rank's copies are done. Outputs become NaN (all bits set).
  void poison_outputs();
  void restore();   // tensors_at_first, state and poison included
  void download();  // for view(), check_guards() and check_untouched()

  std::span<const std::byte> view(int rank, std::size_t tensor_idx) const;
  // "" or which write left its tensor on `rank`.
  std::string check_guards(int rank) const;
  // "" or which input was written to, or which output past the launch's shape.
  std::string check_untouched(int rank) const;

 private:
  struct Storage {
    SymmetricGpuMemory memory;                 // none for a buffer, which the instance owns
    std::vector<std::vector<std::byte>> host;  // [rank], guards included
  };

  void allocate(std::size_t tensor_idx);
  void fill(std::size_t tensor_idx);

  const GpuWorld& world_;
  const OpCase& case_;
  std::vector<TensorsAtFirst> first_;  // [rank], of local ones
  std::vector<Storage> storage_;       // [tensor]
  Args args_;
};

// The program that all cases have, loaded, and what each of them works on. In a world of
// processes every one makes it, and what waits for all ranks is collective.
class GpuCases {
 public:
  // `world` and `cases`, one or more, outlive this. `early`: every launch starts early, after one
  // that writes what is not among weight_inputs (late_inputs.h), the code's constants.
  GpuCases(GpuWorld& world, std::span<const OpCase> cases, const Proved& compiled, GpuCode code,
           bool early = false);

  std::size_t size() const { return memory_.size(); }
  Executable& executable() { return *executable_; }
  // As before a first launch: outputs poisoned, state as it was given.
  void prepare();
  // One launch of a case, on every local rank's stream of the world or on these streams.
  void launch(std::size_t case_idx);
  void launch(std::size_t case_idx, std::span<const RankStream> on);
  // A graph of one launch for each local rank. UserError where that is refused.
  std::vector<cuda::GraphExec> capture(std::size_t case_idx);
  void replay(const std::vector<cuda::GraphExec>& graphs) const;
  // Calls enqueue(case_idx) for the cases in turn, `count` times and for each at least once,
  // without a wait in between. Where launches leave state to the next, each case begins anew and
  // has one more launch alone, which is what compare() then sees.
  void run(int count, const std::function<void(std::size_t case_idx)>& enqueue);
  // "" where the last launch of every case left what is expected, the same bits as the first
  // compared one; else what differs, and where.
  std::string compare();

 private:
  struct Memory {
    Memory(const GpuWorld& world, const OpCase& c);
    GpuCaseMemory tensors;
    Args args, late;                    // of a launch; and of the one before, which is early
    std::vector<FirstBits> first_bits;  // [rank]
  };
  std::string compare(std::size_t case_idx);

  GpuWorld& world_;
  std::span<const OpCase> cases_;
  std::unique_ptr<Executable> executable_;
  std::unique_ptr<LateInputs> late_;             // where launches start early
  std::vector<std::unique_ptr<Memory>> memory_;  // by case
};

struct GpuRunOptions {
  int launches = 3;        // of each case that are compared
  int back_to_back = 1;    // launches enqueued without waiting before each comparison
  std::uint64_t seed = 0;  // named in what is returned
  // Why the program is launched without a proof; empty: it is proved first. Products set it so.
  std::string waiver = "a test compares what programs compute";
  bool graphs = false;   // launches are captured, too, and replayed
  bool streams = false;  // two instances, too, on two streams of every rank at the same time
  bool early = false;    // launches start early (GpuCases), with weight_inputs as constants
  KernelOptions kernel = {};
};

struct GpuRunResult {
  // "" when every launch gave the expected values on all ranks, the same bits each time; else what
  // differed first, with the seed, or on which rank of another process.
  std::string found;
  // "" or why graphs were left out: copies that copy engines make within a rank are not captured
  // (launch/executable.h).
  std::string not_captured;
  bool starts_early = false;  // it was asked for, and the kernel's blocks need not all be resident
};

// Errors of compilation and Fault are thrown.
std::string run_gpu_case(GpuWorld& world, const OpCase& op_case, const GpuRunOptions& options = {});
// The same of cases of one program (op_case.h: cases_of_rows), which are launched in turn.
GpuRunResult run_gpu_cases(GpuWorld& world, std::span<const OpCase> cases,
                           const GpuRunOptions& options = {});

// The last rank does not come to a launch: "" when the others' Fault came before ten deadlines of
// the world and names the program, and when after it launches and graphs captured before gave the
// expected values; else what went otherwise. A program whose ranks have nothing to do with each
// other has to end well. For a world of one process, which has recovered when this returns.
std::string stall_gpu_cases(GpuWorld& world, std::span<const OpCase> cases,
                            const GpuRunOptions& options = {});

}  // namespace stretto
