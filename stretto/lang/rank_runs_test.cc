#include "stretto/lang/rank_runs.h"

#include "stretto/executor/program_runner.h"
#include "stretto/passes/pipeline.h"

namespace stretto::rank_runs {

std::vector<Tensors> run(const Program& program, const Inputs& inputs, const Options& options) {
  auto schedule = std::make_shared<const Program>(run_pipeline(program));
  World world({.size = program.world_size});
  std::vector<Tensors> results(static_cast<std::size_t>(program.world_size));
  run_program(world, schedule, [&](Rank& rank, Instance& instance, RankArguments& arguments) {
    for (const auto& [name, values] : inputs(rank.index())) arguments.set(name, values);
    if (!options.extents.empty()) arguments.extents = options.extents;
    for (int e = 0; e < options.launches; ++e) instance.launch(arguments.args, arguments.extents);
    for (const Tensor& t : schedule->tensors) {
      if (t.kind == TensorKind::kOutput || t.kind == TensorKind::kState) {
        results[static_cast<std::size_t>(rank.index())][t.name] = arguments.get(t.name);
      }
    }
  });
  return results;
}

}  // namespace stretto::rank_runs
