#include "stretto/testing/gpu_harness/gpu_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/compiler.h"
#include "stretto/testing/harness/case_data.h"

namespace stretto {

GpuCaseMemory::GpuCaseMemory(const GpuWorld& world, const OpCase& op_case)
    : world_(world),
      case_(op_case),
      first_(static_cast<std::size_t>(world.size())),
      storage_(op_case.program.tensors.size()) {
  for (int rank : world.local_ranks()) {
    first_[static_cast<std::size_t>(rank)] = tensors_at_first(op_case, rank);
  }
  args_.tensors.resize(storage_.size());
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (case_.program.tensors[t].kind != TensorKind::kBuffer) allocate(t);
  }
  restore();
}

void GpuCaseMemory::allocate(std::size_t t) {
  Storage& s = storage_[t];
  std::size_t bytes = storage_bytes(case_.program, static_cast<int>(t));
  s.memory = world_.allocate(bytes + 2 * kGuardBytes);
  s.host.resize(s.memory.on.size());
  for (CUdeviceptr address : s.memory.addresses()) {
    std::vector<CUdeviceptr>& on = args_.tensors[t].on;
    const bool given = is_given(case_.program, static_cast<int>(t), static_cast<int>(on.size()));
    on.push_back(given ? address + kGuardBytes : 0);
  }
}

void GpuCaseMemory::restore() {
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (case_.program.tensors[t].kind != TensorKind::kBuffer) fill(t);
  }
  world_.meet();
}

void GpuCaseMemory::fill(std::size_t t) {
  Storage& s = storage_[t];
  std::size_t bytes = storage_bytes(case_.program, static_cast<int>(t));
  for (int rank : world_.local_ranks()) {
    auto at = static_cast<std::size_t>(rank);
    std::vector<std::byte>& host = s.host[at];
    host.assign(bytes + 2 * kGuardBytes, kGuard);
    std::ranges::copy(first_[at][t], host.begin() + kGuardBytes);
    world_.stream(rank).upload(s.memory.on[at].address(), host.data(), host.size());
  }
}

void GpuCaseMemory::poison_outputs() {
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (case_.program.tensors[t].kind != TensorKind::kOutput) continue;
    for (int rank : world_.local_ranks()) {
      if (!is_given(case_.program, static_cast<int>(t), rank)) continue;
      world_.stream(rank).fill_bytes(args_.tensors[t].on[static_cast<std::size_t>(rank)], kPoison,
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

std::string GpuCaseMemory::check_untouched(int rank) const {
  TensorBytes left = [&](std::size_t t) { return view(rank, t); };
  return stretto::check_untouched(case_, rank, first_[static_cast<std::size_t>(rank)], left);
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

GpuCases::Memory::Memory(const GpuWorld& world, const OpCase& c)
    : tensors(world, c), first_bits(static_cast<std::size_t>(world.size())) {}

GpuCases::GpuCases(GpuWorld& world, std::span<const OpCase> cases, const Proved& compiled,
                   GpuCode code, bool early)
    : world_(world), cases_(cases), executable_(load(compiled, world, std::move(code))) {
  const Program& program = cases.front().program;
  if (early) late_ = std::make_unique<LateInputs>(world, program, weight_inputs(program));
  for (const OpCase& c : cases) {
    Memory& m = *memory_.emplace_back(std::make_unique<Memory>(world, c));
    m.args = m.tensors.args();
    m.args.starts_early = early;
    if (early) m.late = late_->arguments(m.args);
  }
}

void GpuCases::prepare() {
  for (auto& m : memory_) {
    if (keeps_state(cases_.front().program)) m->tensors.restore();
    m->tensors.poison_outputs();
  }
}

void GpuCases::launch(std::size_t idx) {
  const Memory& m = *memory_[idx];
  if (late_ == nullptr) return executable_->prepare(m.args)->run(m.tensors.extents());
  launch(idx, world_.local_streams());
}

void GpuCases::launch(std::size_t idx, std::span<const RankStream> on) {
  const Memory& m = *memory_[idx];
  if (late_ != nullptr) {
    for (const RankStream& r : on) late_->launch(m.late, r.rank, *r.stream);
  }
  executable_->prepare(m.args)->run(m.tensors.extents(), on);
}

std::vector<cuda::GraphExec> GpuCases::capture(std::size_t idx) {
  std::vector<cuda::GraphExec> graphs;
  for (int rank : world_.local_ranks()) {
    const cuda::Stream& stream = world_.stream(rank);
    stream.begin_capture();
    try {
      launch(idx, std::vector<RankStream>{{rank, &stream}});
    } catch (...) {
      stream.end_capture();
      throw;
    }
    graphs.push_back(stream.end_capture());
  }
  return graphs;
}

void GpuCases::replay(const std::vector<cuda::GraphExec>& graphs) const {
  for (int rank : world_.local_ranks()) {
    graphs[world_.local_index(rank)].launch(world_.stream(rank));
  }
}

void GpuCases::run(int count, const std::function<void(std::size_t)>& enqueue) {
  const auto times = std::max(static_cast<std::size_t>(count), size());
  prepare();
  for (std::size_t i = 0; i < times; ++i) enqueue(i % size());
  if (!keeps_state(cases_.front().program) || times == size()) return;
  executable_->wait();
  prepare();
  for (std::size_t i = 0; i < size(); ++i) enqueue(i);
}

std::string GpuCases::compare() {
  executable_->wait();
  std::string found;
  for (std::size_t i = 0; i < size() && found.empty(); ++i) found = compare(i);
  return found;
}

std::string GpuCases::compare(std::size_t idx) {
  const OpCase& c = cases_[idx];
  GpuCaseMemory& tensors = memory_[idx]->tensors;
  tensors.download();
  std::string differs;
  for (int rank : world_.local_ranks()) {
    TensorBytes left = [&](std::size_t t) { return tensors.view(rank, t); };
    std::string found = compare_case(c, rank, left);
    if (found.empty()) found = tensors.check_guards(rank);
    if (found.empty()) found = tensors.check_untouched(rank);
    if (found.empty()) {
      found = memory_[idx]->first_bits[static_cast<std::size_t>(rank)].check(c, left);
    }
    if (found.empty()) continue;
    differs = fmt::format("{}: rank {}: {}", c.config, rank, found);
    break;
  }
  return found_anywhere(world_, differs);
}

}  // namespace stretto
