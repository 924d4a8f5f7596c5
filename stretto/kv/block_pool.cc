#include "stretto/kv/block_pool.h"

#include "stretto/base/errors.h"

namespace stretto {

BlockPool::BlockPool(int num_blocks) : blocks_(static_cast<std::size_t>(num_blocks)) {
  for (int i = num_blocks - 1; i >= 0; --i) free_.push_back(i);
}

BlockPool::Block& BlockPool::at(int block) {
  STRETTO_CHECK(block >= 0 && block < size(), "a block outside the pool");
  return blocks_[static_cast<std::size_t>(block)];
}

const BlockPool::Block& BlockPool::at(int block) const {
  STRETTO_CHECK(block >= 0 && block < size(), "a block outside the pool");
  return blocks_[static_cast<std::size_t>(block)];
}

std::optional<int> BlockPool::take() {
  int block = 0;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (!idle_.empty()) {
    block = idle_.front();
    idle_.pop_front();
    at(block).kept = false;
    if (forget_) forget_(block);
  } else {
    return std::nullopt;
  }
  at(block).references = 1;
  return block;
}

void BlockPool::add_reference(int block) {
  Block& b = at(block);
  STRETTO_CHECK(b.references > 0 || b.kept, "a reference to a block that is free");
  if (b.references++ == 0) idle_.erase(b.idle_at);
}

void BlockPool::release(int block) {
  Block& b = at(block);
  STRETTO_CHECK(b.references > 0, "a block is released that nobody uses");
  if (--b.references > 0) return;
  if (b.kept) {
    b.idle_at = idle_.insert(idle_.end(), block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::keep(int block) {
  Block& b = at(block);
  STRETTO_CHECK(b.references > 0, "the content of a block is kept that nobody uses");
  b.kept = true;
}

}  // namespace stretto
