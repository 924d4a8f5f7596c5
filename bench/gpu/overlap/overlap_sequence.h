// The unfused path of a fused operator's shape: cuBLASLt's product of each rank and a collective,
// NCCL's or ours, one after the other, on buffer sets that the fused programs work on too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/overlap/overlap_shapes.h"
#include "stretto/launch/executable.h"
#include "stretto/ops/collectives/collectives.h"
#include "stretto/ops/measure/random_fill.h"
#include "stretto/runtime/cuda/cublaslt.h"
#include "stretto/runtime/cuda/nccl.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto::bench {

class OverlapSequence {
 public:
  // Random factors in every set; cuBLASLt's best algorithm of `library_rounds` calls each. The
  // references are kept.
  OverlapSequence(GpuWorld& world, const cuda::NcclRanks& nccl, RandomFill& random,
                  const OverlapShape& shape, int num_sets, int library_rounds);

  int num_sets() const { return static_cast<int>(sets_.size()); }
  void product(int set) const;     // cuBLASLt alone
  void collective(int set) const;  // NCCL alone
  void run(int set) const;         // both
  // cuBLASLt while copy engines send every peer what the collective would: what is left of an
  // overlap without any dependence between the two. Ends with the later of both.
  void product_beside_traffic(int set) const;

  // Our collective instead of NCCL's from now on available: all_gather, reduce_scatter or
  // all_reduce in its default config, without copy engines. Errors of prove() and load().
  void load_own_collective();
  void run_with_own(int set) const;
  Executable* own_collective() const { return own_.get(); }  // null before load_own_collective

  // Of a fused program, whose result goes where compare() looks.
  Args arguments(const Program& program, int set) const;
  std::vector<std::int64_t> extents() const { return {shape_.rank.m}; }
  void poison_ours(int set) const;
  // Of what the fused program and the sequence left in a set: "" where they agree.
  std::string compare(int set) const;

 private:
  // A tensor of a shape: what one rank holds.
  struct Extent {
    std::int64_t rows = 0, cols = 0;
    std::size_t elements() const { return static_cast<std::size_t>(rows * cols); }
    std::size_t bytes() const;
  };
  struct Extents {
    Extent a, b, out;  // the operator's
    Extent between;    // the gathered rows, or the product to be summed
  };
  struct Set {
    SymmetricGpuMemory a, b, ours, theirs, between;
  };

  static Extents extents_of(const OverlapShape& shape);
  bool gathers() const { return shape_.kind == OverlapKind::kAgGemm; }
  const Set& at(int set) const { return sets_[static_cast<std::size_t>(set)]; }
  cuda::CublasLtOperands operands(int set, int rank) const;
  void choose_library(int rounds);
  std::size_t bytes_to_each_peer() const;  // of the collective, both halves of an all-reduce

  GpuWorld& world_;
  const cuda::NcclRanks& nccl_;
  OverlapShape shape_;
  Extents sizes_;
  std::vector<Set> sets_;
  std::vector<cuda::CublasLtGemm> library_;  // [rank]
  // [rank]: an engine's stream, when it may begin and has ended; where peers' bytes arrive.
  std::vector<cuda::Stream> engines_;
  std::vector<cuda::Event> begun_, sent_;
  SymmetricGpuMemory traffic_;
  std::unique_ptr<Executable> own_;
  std::vector<std::shared_ptr<Launch>> own_launches_;  // [set]
};

// The config of our collective for a message of `desc` without copy engines: packets, one hop or
// two for a sum, as measured on two H200s (docs/performance/collectives.md).
Program collective_program(OverlapKind kind, const CollectiveDesc& desc);

}  // namespace stretto::bench
