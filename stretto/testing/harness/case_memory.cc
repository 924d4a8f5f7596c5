#include "stretto/testing/harness/case_memory.h"

#include <algorithm>

#include "stretto/testing/harness/case_data.h"

namespace stretto {

CaseMemory::CaseMemory(Rank& rank, const OpCase& op_case)
    : rank_(rank), program_(op_case.program), storage_(op_case.program.tensors.size()) {
  args_.tensors.resize(storage_.size());
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (program_.tensors[t].kind == TensorKind::kBuffer) continue;
    if (is_given(program_, static_cast<int>(t), rank.index())) allocate(t);
  }
  take(tensors_at_first(op_case, rank.index()), op_case.extents);
}

CaseMemory::~CaseMemory() {
  for (Storage& s : storage_) {
    if (s.symmetric.bytes > 0) rank_.release(s.symmetric);
  }
}

void CaseMemory::allocate(std::size_t t) {
  const Tensor& tensor = program_.tensors[t];
  Storage& s = storage_[t];
  s.bytes = storage_bytes(program_, static_cast<int>(t));
  if (tensor.space == Space::kSymmetric) {
    s.symmetric = rank_.allocate(tensor.name, DType::kU8, std::max<std::size_t>(s.bytes, 1));
    s.data = s.symmetric.at[static_cast<std::size_t>(rank_.index())];
    args_.tensors[t].symmetric = &s.symmetric;
    return;
  }
  s.owned.assign(s.bytes + 2 * kGuardBytes, kGuard);
  s.data = s.owned.data() + kGuardBytes;
  args_.tensors[t].data = s.data;
}

void CaseMemory::take(const TensorsAtFirst& first, const std::vector<std::int64_t>& extents) {
  extents_ = extents;
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    std::copy(first[t].begin(), first[t].end(), storage_[t].data);
  }
}

std::span<const std::byte> CaseMemory::view(std::size_t t) const {
  return {storage_[t].data, storage_[t].bytes};
}

std::vector<std::byte> CaseMemory::bytes_of(std::size_t t) const {
  std::span<const std::byte> bytes = view(t);
  return {bytes.begin(), bytes.end()};
}

double CaseMemory::element(std::size_t t, std::size_t i) const {
  DType dtype = program_.tensors[t].dtype;
  return load_element(dtype, storage_[t].data + i * size_bytes(dtype));
}

std::string CaseMemory::check_guards() const {
  for (std::size_t t = 0; t < storage_.size(); ++t) {
    if (storage_[t].owned.empty()) continue;
    std::string found = stretto::check_guards(storage_[t].owned, program_.tensors[t].name);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace stretto
