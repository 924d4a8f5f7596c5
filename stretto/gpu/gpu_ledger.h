// The ledger of SMs of one GPU, for all worlds of this process that have a rank there: groups of
// ranks whose kernels run beside each other would otherwise wait for each other's SMs, each on
// another rank first. Comes between sm_ledger.h, which decides, and gpu_world.h, which asks.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "stretto/gpu/sm_ledger.h"
#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto {

class GpuLedger {
 public:
  // The ledger of GPU `ordinal`, whose waiting kernels may take num_sms.
  GpuLedger(int ordinal, int num_sms);
  ~GpuLedger();
  GpuLedger(const GpuLedger&) = delete;
  GpuLedger& operator=(const GpuLedger&) = delete;

  int ordinal() const;
  int num_sms() const { return num_sms_; }

  struct Admitted {
    std::unique_lock<std::mutex> lock;  // to be held until the kernel is enqueued
    bool captured = false;
  };
  // Does what SmLedger::admit does, on any thread.
  Admitted admit(const cuda::Stream& stream, const SmDemand& demand);
  // Nothing runs any more on this GPU.
  void clear();

 private:
  struct State;
  int num_sms_;
  std::mutex mutex_;
  std::unique_ptr<State> state_;
};

}  // namespace stretto
