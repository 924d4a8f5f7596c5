// The blocks of a cache of keys and values, by number: who uses them, and which hold what may be
// used again. A block is free (nobody's, and what it holds counts for nothing), used by as many as
// it has references, or idle: nobody's, but with content that a prefix_cache.h can still find. Idle
// ones are given out again last, those first that have been idle for the longest time.
//
// Host only; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <vector>

namespace stretto {

class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int size() const { return static_cast<int>(blocks_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_idle() const { return static_cast<int>(idle_.size()); }
  int num_available() const { return num_free() + num_idle(); }
  int references(int block) const { return at(block).references; }
  bool is_kept(int block) const { return at(block).kept; }

  // One with one reference, whose content is the caller's to write; nothing where all are used.
  std::optional<int> take();
  // Of one that is used or idle.
  void add_reference(int block);
  // The last one leaves it idle where its content is kept, else free.
  void release(int block);
  // Of one that is used: its content is worth keeping.
  void keep(int block);
  // Called with an idle block whose content is evicted; it is no longer kept.
  void on_forget(std::function<void(int block)> forget) { forget_ = std::move(forget); }

 private:
  struct Block {
    int references = 0;
    bool kept = false;
    std::list<int>::iterator idle_at = {};  // where it is idle
  };
  Block& at(int block);
  const Block& at(int block) const;

  std::vector<Block> blocks_;
  std::vector<int> free_;
  std::list<int> idle_;  // the first has been idle for the longest time
  std::function<void(int)> forget_;
};

}  // namespace stretto
