#include "stretto/ops/attention/paged_write.h"

namespace stretto {

PagedWriteConfig default_config(const PagedWriteDesc& d, Target target) {
  if (target == Target::kCpu) return {};
  return {.num_workers = gpu_workers(d.m, target.sms())};
}

}  // namespace stretto
