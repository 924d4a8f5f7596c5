#include "stretto/ops/gpu_harness/gpu_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/compiler.h"
#include "stretto/ops/harness/case_data.h"

namespace stretto {

GpuCaseMemory::GpuCaseMemory(const GpuWorld& world, const OpCase& op_case)
    : world_(world), case_(op_case), storage_(op_case.program.tensors.size()) {
  args_.tensors.resize(storage_.size());
  args_.extents = case_.extents;
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (case_.program.tensors[t].kind != TensorKind::kBuffer) allocate(t);
  }
  world_.meet();
}

void GpuCaseMemory::allocate(std::size_t t) {
  Storage& s = storage_[t];
  std::size_t bytes = storage_bytes(case_.program, static_cast<int>(t));
  s.memory = world_.allocate(bytes + 2 * kGuardBytes);
  s.host.resize(s.memory.on.size());
  for (CUdeviceptr address : s.memory.addresses()) {
    args_.tensors[t].push_back(address + kGuardBytes);
  }
  for (int rank : world_.local_ranks()) {
    auto at = static_cast<std::size_t>(rank);
    std::vector<std::byte>& host = s.host[at];
    host.assign(bytes + 2 * kGuardBytes, kGuard);
    std::vector<std::byte> initial = initial_bytes(case_, rank, t);
    std::copy(initial.begin(), initial.end(), host.begin() + kGuardBytes);
    world_.stream(rank).upload(s.memory.on[at].address(), host.data(), host.size());
  }
}

void GpuCaseMemory::poison_outputs() {
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (case_.program.tensors[t].kind != TensorKind::kOutput) continue;
    for (int rank : world_.local_ranks()) {
      world_.stream(rank).fill_bytes(args_.tensors[t][static_cast<std::size_t>(rank)], kPoison,
                                     view(rank, t).size());
    }
  }
  world_.meet();
}

void GpuCaseMemory::download() {
  for (Storage& s : storage_) {
    if (s.host.empty()) continue;
    for (int rank : world_.local_ranks()) {
      auto r = static_cast<std::size_t>(rank);
      world_.stream(rank).download(s.host[r].data(), s.memory.on[r].address(), s.host[r].size());
    }
  }
  world_.synchronize();
}

std::span<const std::byte> GpuCaseMemory::view(int rank, std::size_t t) const {
  std::span<const std::byte> all = storage_[t].host[static_cast<std::size_t>(rank)];
  return all.subspan(kGuardBytes, all.size() - 2 * kGuardBytes);
}

std::string GpuCaseMemory::check_guards(int rank) const {
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (storage_[t].host.empty()) continue;
    std::string found = stretto::check_guards(storage_[t].host[static_cast<std::size_t>(rank)],
                                              case_.program.tensors[t].name);
    if (!found.empty()) return found;
  }
  return "";
}

namespace {

// `own`, or else which other process has found something.
std::string found_anywhere(const GpuWorld& world, const std::string& own) {
  const auto well = static_cast<std::byte>(own.empty() ? 1 : 0);
  std::vector<std::vector<std::byte>> all = world.exchange({&well, 1});
  if (!own.empty()) return own;
  for (std::size_t process = 0; process < all.size(); ++process) {
    if (all[process].front() != std::byte{1}) return fmt::format("rank {}: it says what", process);
  }
  return "";
}

}  // namespace

std::string run_gpu_case(GpuWorld& world, const OpCase& c, const GpuRunOptions& options) {
  CompiledProgram compiled = compile(c.program, {.require_proof = options.require_proof});
  GpuInstance instance(world, compiled);
  GpuCaseMemory memory(world, c);
  bool repeats = !keeps_state(c.program);
  std::vector<FirstBits> first_bits(static_cast<std::size_t>(world.size()));
  for (int i = 0; i < options.launches; ++i) {
    memory.poison_outputs();
    int enqueued = repeats ? options.back_to_back : 1;
    for (int n = 0; n < enqueued; ++n) instance.launch(memory.args());
    instance.wait();
    memory.download();
    std::string differs;
    for (int rank : world.local_ranks()) {
      TensorBytes left = [&](std::size_t t) { return memory.view(rank, t); };
      std::string found;
      if (repeats || i == 0) found = compare_case(c, rank, i, left);
      if (found.empty()) found = memory.check_guards(rank);
      if (found.empty() && repeats) {
        found = first_bits[static_cast<std::size_t>(rank)].check(c, left);
      }
      if (differs.empty() && !found.empty()) differs = fmt::format("rank {}: {}", rank, found);
    }
    differs = found_anywhere(world, differs);
    if (differs.empty()) continue;
    return fmt::format("{} (seed {}): launch {}: {}", c.config, options.seed, i, differs);
  }
  return "";
}

}  // namespace stretto
