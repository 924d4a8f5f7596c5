// The storage behind SymmetricBuffer and SignalBlock: one copy per rank, allocated once for all
// ranks by the last rank to arrive at the rendezvous, freed when the last rank has released it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/runtime/world.h"

namespace stretto {

// Thread-safe.
class SymmetricHeap {
 public:
  explicit SymmetricHeap(int num_ranks) : num_ranks_(num_ranks) {}

  // Return the id. UserError naming the request when the size overflows or memory is short.
  int add_buffer(const std::string& name, DType dtype, std::size_t elements);
  int add_signals(const std::string& name, std::size_t count);

  SymmetricBuffer buffer(int id) const;
  SignalBlock signals(int id) const;

  // Id -1 (an empty handle) is ignored; a handle that this rank has already released is a
  // UserError.
  void release_buffer(int id, int rank);
  void release_signals(int id, int rank);

  void zero_signals();  // outside World::run

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  struct Buffer {
    SymmetricBuffer handle;
    std::vector<std::unique_ptr<std::byte, Free>> storage;  // [world]
    std::uint64_t released = 0;                             // bit per rank
  };
  struct Signals {
    SignalBlock handle;
    std::vector<std::unique_ptr<SignalCounter[]>> storage;  // [world]
    std::uint64_t released = 0;
  };

  template <typename Block>
  void release(std::map<int, Block>& blocks, int id, int rank);

  const int num_ranks_;
  mutable std::mutex mutex_;
  int next_id_ = 0;
  std::map<int, Buffer> buffers_;
  std::map<int, Signals> signals_;
};

}  // namespace stretto
