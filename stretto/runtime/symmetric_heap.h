// The storage behind SymmetricBuffer and SignalBlock: one copy per rank. An allocation takes two
// steps with a meeting of all ranks in between, so that every rank may do its part: create, then
// attach. Two kinds: private memory of one process, shared memory of several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stretto/runtime/processes/peers.h"
#include "stretto/runtime/processes/shared_memory.h"

namespace stretto {

struct Allocation {
  std::uint64_t id = 0;  // the same on all ranks
  std::string name;
  std::size_t count = 0, each_bytes = 1;
  bool signals = false;

  std::size_t bytes() const { return count * each_bytes; }
};

// Thread-safe.
class SymmetricHeap {
 public:
  virtual ~SymmetricHeap() = default;

  // The part of `rank`. UserError naming the request when the size overflows or memory is short.
  virtual void create(int rank, const Allocation& allocation) = 0;
  // The copies of all ranks by rank, zeroed, 64-byte aligned; nullptr for a rank whose copy does
  // not come by the deadline, or as soon as `aborts`. UserError as create().
  virtual std::vector<std::byte*> attach(int rank, std::uint64_t id, Deadline deadline,
                                         const std::function<bool()>& aborts) = 0;
  // What this rank no longer uses; false where it has released it already.
  virtual bool release(int rank, std::uint64_t id) = 0;

  virtual void zero_signals() = 0;  // of the ranks of this process
  virtual void clear() = 0;         // releases everything
};

std::unique_ptr<SymmetricHeap> make_private_heap(int num_ranks);

// `members[r]` is the peer that is rank r of the world `world`.
std::unique_ptr<SymmetricHeap> make_shared_heap(std::shared_ptr<Peers> peers, std::uint64_t world,
                                                std::vector<int> members);

// Throws the UserError of an allocation that cannot be.
[[noreturn]] void refuse_allocation(const Allocation& allocation, std::size_t num_ranks,
                                    const std::string& reason);
void check_allocation_size(const Allocation& allocation, std::size_t num_ranks);

}  // namespace stretto
