// The loop over shapes that comparisons share: what fails for a shape is in its result. Those with
// NCCL have one set of communicators.
#pragma once

#include <functional>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/gpu/gpu_world.h"
#include "stretto/ops/measure/random_fill.h"
#include "stretto/runtime/cuda/nccl.h"

namespace stretto::bench {

// Result has `shape` and `error`. `compare` gives the result of a shape; `done` gets each.
template <typename Result, typename Shape, typename Compare>
void for_each_shape(GpuWorld& world, const std::vector<Shape>& shapes, const Compare& compare,
                    const std::function<void(const Result&)>& done) {
  for (const Shape& shape : shapes) {
    Result result{.shape = shape};
    try {
      result = compare(shape);
    } catch (const Fault& e) {
      result.error = e.what();
      world.synchronize();
      world.clear_fault();
    } catch (const Error& e) {
      result.error = e.what();
    }
    done(result);
  }
}

// The same where `compare` also has communicators and what fills memory.
template <typename Result, typename Shape, typename Compare>
void for_each_shape(GpuWorld& world, const std::vector<Shape>& shapes, std::uint64_t seed,
                    const Compare& compare, const std::function<void(const Result&)>& done) {
  std::vector<int> ordinals;
  for (int r = 0; r < world.size(); ++r) ordinals.push_back(r);
  cuda::NcclRanks nccl(ordinals);
  RandomFill random(world, seed);
  auto with_nccl = [&](const Shape& shape) { return compare(nccl, random, shape); };
  for_each_shape<Result>(world, shapes, with_nccl, done);
}

}  // namespace stretto::bench
