#include "executable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "cpu_executable.h"
#include "gpu_executable.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/quota.h"

namespace stretto::python {

std::shared_ptr<Executable> Executable::make(std::shared_ptr<Session> session, int rank,
                                             const CompiledProgram& compiled,
                                             const std::vector<bool>& staged, Place place,
                                             bool records) {
  if (place == Place::kGpu) {
    return std::make_shared<GpuExecutable>(std::move(session), rank, compiled, staged, records);
  }
  return std::make_shared<CpuExecutable>(std::move(session), rank, compiled, staged);
}

Executable::Executable(std::shared_ptr<Session> session, int rank, const CompiledProgram& compiled,
                       const std::vector<bool>& staged, Place place)
    : session_(std::move(session)), rank_(rank), schedule_(compiled.schedule), place_(place) {
  const Program& p = *schedule_;
  if (compiled.bounds_only) bounds_ = extent_bounds(p);
  if (staged.size() > p.tensors.size()) throw UserError(p.name + ": more tensors than it has");
  std::vector<std::string> texts;
  std::vector<bool> by_address;
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const Tensor& t = p.tensors[i];
    if (t.kind == TensorKind::kBuffer) continue;
    std::size_t arg = arguments_.size();
    Passing passing = t.space != Space::kSymmetric ? Passing::kOwn
                      : staged[arg]                ? Passing::kStaged
                                                   : Passing::kSymmetric;
    arguments_.push_back({i, passing});
    by_address.push_back(passing == Passing::kSymmetric);
    texts.push_back(fmt::format("{}{} {} {}", by_address.back() ? "symmetric " : "", t.name,
                                stretto::name(t.dtype), bound_shape(p, static_cast<int>(i))));
    if (passing != Passing::kStaged) continue;
    staging_.push_back({arg, t.kind != TensorKind::kOutput, t.kind != TensorKind::kInput,
                        storage_bytes(p, static_cast<int>(i)), nullptr});
  }
  content_ = std::hash<std::string>()(print(p) + fmt::format("{}", by_address));
  call_ = fmt::format("{}({}){}, program {:08x}", p.name, fmt::join(texts, ", "),
                      place == Place::kGpu ? " on GPUs" : "", content_ >> 32);
}

void Executable::make_staging() {
  for (Staging& s : staging_) {
    const Tensor& t = schedule_->tensors[arguments_[s.arg].tensor];
    s.memory = std::make_unique<SymmetricMemory>(
        session_, rank_, fmt::format("{}.{} (staging)", schedule_->name, t.name), place_, s.bytes);
  }
}

void Executable::check(std::size_t num_args, std::span<const std::int64_t> extents) const {
  if (num_args != arguments_.size()) {
    throw UserError(fmt::format("{}: {} tensors given, it has {}", schedule_->name, num_args,
                                arguments_.size()));
  }
  if (!bounds_.empty() && !std::ranges::equal(extents, bounds_)) {
    throw UserError(
        fmt::format("{}: sizes {} given, proved for {} alone", schedule_->name, extents, bounds_));
  }
}

const SymmetricMemory& Executable::memory_of(std::size_t arg, const std::byte* address) const {
  const SymmetricMemory* memory = session_->find_memory(rank_, address);
  if (memory != nullptr && memory->is_on_gpu() == (place_ == Place::kGpu)) return *memory;
  throw UserError(fmt::format("{}: tensor '{}' is not in symmetric memory", schedule_->name,
                              schedule_->tensors[arguments_[arg].tensor].name));
}

}  // namespace stretto::python
