#include "stretto/engine/warm.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "stretto/base/threads.h"
#include "stretto/model/gpu/gpu_choice.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/step/gpu_kernels.h"

namespace stretto {
namespace {

// One thing to make; `make` is called once.
struct Making {
  std::string label;
  std::function<void()> make;
};

// In the order of their steps, the largest first.
std::vector<Making> makings(const ModelShape& shape, std::int64_t max_rows) {
  std::vector<Making> out;
  std::vector<BatchBounds> bounds = batch_bounds(shape, max_rows);
  const bool on_gpus = shape.target == Target::kCuda;
  for (auto b = bounds.rbegin(); b != bounds.rend(); ++b) {
    ModelShape of_step = shape;
    of_step.paged.sequences = b->sequences;
    step::Plan plan = plan_step(of_step, b->rows).plan;
    std::vector<std::set<std::string>> constants = step::constant_inputs(plan);
    std::vector<ProveOptions> proofs = step_proofs(of_step, plan, *b, shape.target.gpu());
    std::vector<Program>& programs = plan.programs;
    for (std::size_t i = 0; i < programs.size(); ++i) {
      std::string label = fmt::format("{}, step of {} rows", programs[i].name, b->rows);
      if (on_gpus) {
        out.push_back({std::move(label), [p = std::move(programs[i]), own = std::move(constants[i]),
                                          proof = std::move(proofs[i])]() mutable {
                         step::build_kernel(std::move(p), std::move(own), proof);
                       }});
      } else {
        out.push_back({std::move(label),
                       [p = std::move(programs[i])]() mutable { prove(lower(std::move(p))); }});
      }
    }
  }
  if (on_gpus) out.push_back({"choice of tokens", [] { compile_choice_kernel(); }});
  return out;
}

}  // namespace

std::size_t warm_model(const ModelFiles& files, const EngineOptions& options,
                       const ServingOptions& serving, const OnWarmed& told) {
  const Engine engine(files, options);
  const BatchOptions batch = plan_serving(files, engine, options, serving).batch;
  std::vector<Making> all = makings(engine.batch_model_shape(batch), batch.max_rows);
  std::vector<std::exception_ptr> errors(all.size());
  std::mutex mutex;
  std::size_t done = 0;
  side_by_side(all.size(), num_processors(), [&](std::size_t i) {
    const auto start = std::chrono::steady_clock::now();
    try {
      all[i].make();
    } catch (...) {
      errors[i] = std::current_exception();
      return;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::lock_guard lock(mutex);
    ++done;
    if (told) told({done, all.size(), all[i].label, took.count()});
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return all.size();
}

}  // namespace stretto
