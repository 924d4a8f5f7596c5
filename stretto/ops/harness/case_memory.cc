#include "stretto/ops/harness/case_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace stretto {
namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xA5};
constexpr int kPoison = 0xFF;  // a NaN in every float format, -1 in integers

bool is_filled(const Tensor& t) {
  return t.kind == TensorKind::kInput || t.kind == TensorKind::kState;
}

}  // namespace

CaseMemory::CaseMemory(Rank& rank, const OpCase& op_case)
    : rank_(rank), case_(op_case), storage_(op_case.program.tensors.size()) {
  args_.tensors.resize(storage_.size());
  args_.extents = case_.extents;
  const auto& inputs = case_.inputs[static_cast<std::size_t>(rank.index())];
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    const Tensor& tensor = case_.program.tensors[t];
    if (tensor.kind == TensorKind::kBuffer) continue;
    allocate(t);
    if (!is_filled(tensor)) continue;
    if (inputs[t].empty() && is_float(tensor.dtype)) {
      std::size_t count = storage_[t].bytes / size_bytes(tensor.dtype);
      fill(t,
           random_values(count, tensor.dtype, 1000 * t + static_cast<std::size_t>(rank.index())));
    } else {
      fill(t, inputs[t]);
    }
  }
}

CaseMemory::~CaseMemory() {
  for (Storage& s : storage_) {
    if (s.symmetric.bytes > 0) rank_.release(s.symmetric);
  }
}

void CaseMemory::allocate(std::size_t t) {
  const Tensor& tensor = case_.program.tensors[t];
  Storage& s = storage_[t];
  s.bytes = storage_bytes(case_.program, static_cast<int>(t));
  if (tensor.space == Space::kSymmetric) {
    s.symmetric = rank_.allocate(tensor.name, DType::kU8, std::max<std::size_t>(s.bytes, 1));
    s.data = s.symmetric.at[static_cast<std::size_t>(rank_.index())];
    args_.tensors[t].symmetric = &s.symmetric;
    return;
  }
  s.owned.assign(s.bytes + 2 * kGuardBytes, kGuard);
  s.data = s.owned.data() + kGuardBytes;
  std::memset(s.data, 0, s.bytes);
  args_.tensors[t].data = s.data;
}

void CaseMemory::fill(std::size_t t, const Values& values) {
  DType dtype = case_.program.tensors[t].dtype;
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(dtype, storage_[t].data + i * size_bytes(dtype), values[i]);
  }
}

void CaseMemory::poison_outputs() {
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (case_.program.tensors[t].kind == TensorKind::kOutput) {
      std::memset(storage_[t].data, kPoison, storage_[t].bytes);
    }
  }
}

std::vector<std::byte> CaseMemory::bytes_of(std::size_t t) const {
  return {storage_[t].data, storage_[t].data + storage_[t].bytes};
}

double CaseMemory::element(std::size_t t, std::size_t i) const {
  DType dtype = case_.program.tensors[t].dtype;
  return load_element(dtype, storage_[t].data + i * size_bytes(dtype));
}

std::string CaseMemory::check_guards() const {
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    const auto& owned = storage_[t].owned;
    for (std::size_t i = 0; i < owned.size(); ++i) {
      bool in_guard = i < kGuardBytes || i >= owned.size() - kGuardBytes;
      if (!in_guard || owned[i] == kGuard) continue;
      return fmt::format("rank {}: a write outside '{}', {} bytes from its start", rank_.index(),
                         case_.program.tensors[t].name,
                         static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(kGuardBytes));
    }
  }
  return "";
}

}  // namespace stretto
