// What the executor's tests and benchmarks share: the memory of a program's arguments on every
// rank, and launches of it on a world of threads. Not part of the library.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/executor/executor.h"

namespace stretto {

// A program without tile primitives is the same at both levels.
inline std::shared_ptr<const Program> at_schedule_level(Program program) {
  program.level = Level::kSchedule;
  return std::make_shared<const Program>(std::move(program));
}

// Programs of tests say nothing of other launches than those that are made here.
inline Proved unproved(const Program& program) {
  return waive_proof(lower(program), "a test of the executor");
}

using Doubles = std::vector<double>;

// One rank's arguments of one instance.
class RankArguments {
 public:
  RankArguments(Rank& rank, const Program& program) : rank_(rank), program_(program) {
    args.tensors.resize(program.tensors.size());
    local_.resize(program.tensors.size());
    symmetric_.resize(program.tensors.size());
    extents = extent_bounds(program);
    for (std::size_t i = 0; i < program.tensors.size(); ++i) {
      const Tensor& t = program.tensors[i];
      if (t.kind == TensorKind::kBuffer) continue;
      std::size_t bytes = storage_bytes(program, static_cast<int>(i));
      if (t.space == Space::kSymmetric) {
        symmetric_[i] = rank.allocate(t.name, DType::kU8, bytes + 64);
        args.tensors[i].symmetric = &symmetric_[i];
      } else {
        local_[i].resize(bytes + 64);
        args.tensors[i].data = local_[i].data();
      }
    }
  }
  ~RankArguments() {
    for (const SymmetricBuffer& s : symmetric_) {
      if (s.id >= 0) rank_.release(s);
    }
  }
  RankArguments(const RankArguments&) = delete;
  RankArguments& operator=(const RankArguments&) = delete;

  std::byte* data(const std::string& name) const {
    auto i = static_cast<std::size_t>(program_.find_tensor(name));
    const TensorArg& arg = args.tensors[i];
    return arg.symmetric != nullptr ? arg.symmetric->on<std::byte>(rank_.index())
                                    : static_cast<std::byte*>(arg.data);
  }
  void set(const std::string& name, const Doubles& values) const {
    DType dtype = dtype_of(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      store_element(dtype, data(name) + i * size_bytes(dtype), values[i]);
    }
  }
  Doubles get(const std::string& name) const {
    DType dtype = dtype_of(name);
    int idx = program_.find_tensor(name);
    Doubles values(static_cast<std::size_t>(num_elements(bound_shape(program_, idx))));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = load_element(dtype, data(name) + i * size_bytes(dtype));
    }
    return values;
  }

  Args args;
  std::vector<std::int64_t> extents;

 private:
  DType dtype_of(const std::string& name) const {
    return program_.tensors[static_cast<std::size_t>(program_.find_tensor(name))].dtype;
  }
  Rank& rank_;
  const Program& program_;
  std::vector<std::vector<std::byte>> local_;
  std::vector<SymmetricBuffer> symmetric_;
};

// Runs body(rank, instance, arguments) on every rank of `world`, with poisoned outputs.
inline void run_program(World& world, std::shared_ptr<const Program> program,
                        const std::function<void(Rank&, Instance&, RankArguments&)>& body) {
  const Proved ready = unproved(*program);
  world.run([&](Rank& rank) {
    RankArguments arguments(rank, *program);
    Instance instance(rank, ready, {.poison = true});
    body(rank, instance, arguments);
    rank.barrier();
  });
}

// One rank, one launch: tensors by name in, outputs and state by name out.
inline std::map<std::string, Doubles> run_once(std::shared_ptr<const Program> program,
                                               const std::map<std::string, Doubles>& inputs) {
  World world({.size = 1});
  std::map<std::string, Doubles> outputs;
  run_program(world, program, [&](Rank&, Instance& instance, RankArguments& arguments) {
    for (const auto& [name, values] : inputs) arguments.set(name, values);
    instance.launch(arguments.args, arguments.extents);
    for (const Tensor& t : program->tensors) {
      if (t.kind == TensorKind::kOutput || t.kind == TensorKind::kState) {
        outputs[t.name] = arguments.get(t.name);
      }
    }
  });
  return outputs;
}

}  // namespace stretto
