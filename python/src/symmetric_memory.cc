#include "symmetric_memory.h"

#include <algorithm>
#include <utility>

#include "stretto/launch/executable.h"

namespace stretto::python {

SymmetricMemory::SymmetricMemory(std::shared_ptr<Session> session, int rank,
                                 const std::string& name, MemoryKind place, std::size_t bytes)
    : session_(std::move(session)),
      rank_(session_->rank(rank)),
      bytes_(std::max<std::size_t>(bytes, 1)) {
  if (place == MemoryKind::kHost) {
    buffer_ = rank_.allocate(name, DType::kU8, bytes_);
  } else {
    GpuSide& gpu = session_->gpu();
    on_gpus_ = gpu.allocate(name, bytes_);
    buffer_ = on_gpus(name, on_gpus_);
    device_ = gpu.ordinal();
  }
  data_ = buffer_.on<std::byte>(rank);
  number_ = session_->add_memory(rank, *this);
}

SymmetricMemory::~SymmetricMemory() {
  session_->remove_memory(rank_, *this);
  if (is_on_gpu()) session_->retire(std::move(on_gpus_));
}

}  // namespace stretto::python
