#include "executable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "stretto/ir/printer.h"
#include "stretto/ir/quota.h"

namespace stretto::python {

SymmetricMemory::SymmetricMemory(std::shared_ptr<Session> session, int rank,
                                 const std::string& name, DType dtype, std::size_t elements)
    : session_(std::move(session)),
      rank_(session_->rank(rank)),
      buffer_(rank_.allocate(name, dtype, elements)),
      data_(buffer_.on<std::byte>(rank)) {
  session_->add_memory(rank, *this);
}

SymmetricMemory::~SymmetricMemory() { session_->remove_memory(rank_, *this); }

Executable::Executable(std::shared_ptr<Session> session, int rank, const CompiledProgram& compiled,
                       const std::vector<bool>& staged)
    : session_(std::move(session)), rank_(rank) {
  const Program& p = *compiled.schedule;
  if (staged.size() > p.tensors.size()) throw UserError(p.name + ": more tensors than it has");
  args_.tensors.resize(p.tensors.size());
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const Tensor& t = p.tensors[i];
    if (t.kind == TensorKind::kBuffer) continue;
    std::size_t arg = tensors_.size();
    tensors_.push_back(i);
    by_address_.push_back(t.space == Space::kSymmetric && !staged[arg]);
    if (t.space != Space::kSymmetric || by_address_.back()) continue;
    std::size_t bytes = storage_bytes(p, static_cast<int>(i));
    auto memory = std::make_unique<SymmetricMemory>(session_, rank,
                                                    fmt::format("{}.{} (staging)", p.name, t.name),
                                                    DType::kU8, std::max<std::size_t>(bytes, 1));
    staging_.push_back({arg, t.kind != TensorKind::kOutput, t.kind != TensorKind::kInput, bytes,
                        std::move(memory)});
    args_.tensors[i].symmetric = &staging_.back().memory->buffer();
  }
  instance_ = std::make_unique<Instance>(session_->rank(rank), compiled.schedule, compiled.quotas);
  std::vector<std::string> args;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& t = p.tensors[tensors_[i]];
    args.push_back(fmt::format("{}{} {} {}", by_address_[i] ? "symmetric " : "", t.name,
                               stretto::name(t.dtype),
                               bound_shape(p, static_cast<int>(tensors_[i]))));
  }
  content_ = std::hash<std::string>()(print(p) + fmt::format("{}", by_address_));
  call_ = fmt::format("{}({}), program {:08x}", p.name, fmt::join(args, ", "), content_ >> 32);
}

Executable::~Executable() = default;

void Executable::launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents) {
  Rank& rank = session_->rank(rank_);  // refuses a finalized session
  if (args.size() != tensors_.size()) {
    throw UserError(fmt::format("{}: {} tensors given, it has {}", program().name, args.size(),
                                tensors_.size()));
  }
  for (std::size_t i = 0; i < args.size(); ++i) {
    TensorArg& to = args_.tensors[tensors_[i]];
    if (!by_address_[i]) {
      to.data = args[i];
      continue;
    }
    const SymmetricMemory* memory = session_->find_memory(rank_, args[i]);
    if (memory == nullptr) {
      throw UserError(fmt::format("{}: tensor '{}' is not in symmetric memory", program().name,
                                  program().tensors[tensors_[i]].name));
    }
    to.symmetric = &memory->buffer();
    to.offset_bytes = static_cast<std::size_t>(args[i] - memory->data());
  }
  args_.extents.assign(extents.begin(), extents.end());
  if (rank.size() > 1) rank.agree(call_, content_);
  for (const Staging& s : staging_) {
    if (s.copied_in && s.bytes > 0) std::memcpy(s.memory->data(), args[s.arg], s.bytes);
  }
  instance_->launch(args_);
  for (const Staging& s : staging_) {
    if (s.copied_out && s.bytes > 0) std::memcpy(args[s.arg], s.memory->data(), s.bytes);
  }
}

}  // namespace stretto::python
