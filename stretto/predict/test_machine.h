// A machine of round figures for tests: everything free unless a test makes it cost something, so
// that times can be computed by hand.
#pragma once

#include "stretto/predict/machine.h"

namespace stretto::predict {

inline Machine round_machine(int num_gpus) {
  Machine m;
  m.name = "round";
  m.num_gpus = num_gpus;
  m.num_sms = 10;
  m.tensor_flops = {{DType::kBF16, 1e13}, {DType::kF32, 1e13}};  // 1e12 per SM
  m.burst = 1;
  m.vector_ops = 1e15;
  m.overlap = 1;
  m.hbm_rate = m.l2_rate = 1e15;
  m.l2_bytes = 1e9;
  m.thread_bytes = 1e9;
  m.sm_rate = m.sm_copy_rate = 1e14;
  m.link_rate = 1e9;
  m.packet_rate = 1e9;
  m.push.points = m.pull.points = m.load.points = {{1, 1e9}};
  m.copy_rate = 1e9;
  return m;
}

}  // namespace stretto::predict
