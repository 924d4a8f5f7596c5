// The unfused path on GPUs: the steps of an operator one after the other, with cuBLASLt and NCCL or
// with programs of ours. What a fused operator must not be slower than.
#pragma once

#include <memory>
#include <string>

#include "stretto/ops/choose/candidates.h"
#include "stretto/ops/measure/gpu_program.h"
#include "stretto/predict/machine.h"

namespace stretto {

// The operators of the unfused path: the candidates' sequence, or the operator by itself.
std::vector<OpCandidates::Step> unfused_steps(const std::string& op, const OpShape& shape,
                                              const OpCandidates& candidates);

// Whether the libraries have every step: products and collectives of 16 or 32 bit floats whose rows
// the ranks share evenly.
bool vendor_has(const std::vector<OpCandidates::Step>& steps);

class UnfusedOperator {
 public:
  // `machine`: ranks the configs of our own programs; null: cuBLASLt and NCCL. DeviceError where
  // there is no library.
  UnfusedOperator(GpuWorld& world, const std::vector<OpCandidates::Step>& steps, int num_sets,
                  RandomFill& random, const predict::Machine* machine);
  ~UnfusedOperator();
  UnfusedOperator(const UnfusedOperator&) = delete;
  UnfusedOperator& operator=(const UnfusedOperator&) = delete;

  RanksCall call() const;  // valid as long as this lives
  // "NCCL 2.28.3 (path), then cuBLASLt 13.1.0 (path)".
  const std::string& description() const { return description_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::string description_;
};

}  // namespace stretto
