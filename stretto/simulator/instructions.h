// What kernels compiled for the host ask of the simulated GPU: where a thread is, and the
// instructions that order threads or move memory behind their backs. device_code.h spells PTX with
// them; the machine implements them.
//
// Addresses of shared memory are 32 bits, as in PTX: those of the own block below 2^24, where its
// memory begins at kSharedBase, those of block `c` of the cluster from (c + 1) * 2^24 on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto::simulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// Of the thread that runs.
struct ThreadIndices {
  Dim3 thread, block, block_dim, grid_dim;
  unsigned char* shared;  // dynamic
};
extern ThreadIndices* indices;

constexpr std::uint32_t kSharedBase = 1024;

std::uint32_t shared_address(const void* p);
// Zero at first; `key` names the variable.
void* static_shared(const void* key, std::size_t bytes);

// What all lanes of a warp do together. The last one to come does it, for all: `lanes[i]` is what
// lane i brought, null where it has ended.
enum class WarpOp {
  kMeet,
  kShuffle,
  kAny,
  kElect,
  kLoadMatrix,
  kStoreMatrix,
  kLoadLine,
  kStoreLine,
  kRegisters,
  kProducts
};
void warp_together(WarpOp op, void* mine, void (*act)(void* const lanes[32]));

// Other threads run now and then: before whatever they might see in another order.
void yield();
// After a look at memory that somebody else will write.
void poll();
// The timer that all ranks share, in ns; it passes slowly while there is much to simulate.
std::uint64_t timer_ns();

void mbarrier_init(std::uint32_t bar, std::uint32_t arrivals);
void mbarrier_arrive(std::uint32_t bar);
void mbarrier_expect(std::uint32_t bar, std::uint32_t bytes);  // without arriving
// Blocks until the phase of that parity has completed.
void mbarrier_wait(std::uint32_t bar, std::uint32_t parity);
std::uint32_t address_in_cluster(std::uint32_t address, std::uint32_t block);
std::uint32_t block_of_cluster();

void named_barrier(std::uint32_t id, std::uint32_t threads, bool waits);
void block_barrier();
void cluster_arrive();
void cluster_wait();

void set_register_budget(std::uint32_t registers, bool raises);
void let_next_launch_start();
void wait_for_previous_launch();

// Copies of a thread from global to shared memory; what is not read is zero.
void copy_async(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t read);
void arrive_after_copies(std::uint32_t bar);

// One opaque tensor map, as the driver encodes it. The blocks whose bit is set in `blocks` get the
// box; 0: the own one.
void tma_load(std::uint32_t to, const void* map, std::uint32_t bar, const int (&at)[3],
              unsigned blocks);
void tma_store(const void* map, std::uint32_t from, const int (&at)[3]);
void tma_commit();
// Until all but the last `pending` groups of the thread have been read, or written.
void tma_wait(std::uint32_t pending, bool written);

// Products of a warpgroup, M = 64. The thread's part of the accumulator in the order of PTX's
// operands: 2 * n / 4 values. `a_words`: the thread's words of A, null where A lies in shared
// memory. Begun at once or when they are waited for.
enum class Factor { kBF16, kF16, kE4M3 };
struct Product {
  Factor factor;
  int n, k;
  float* const* sum;
  bool keep;
  const std::uint32_t* a_words;
  std::uint64_t a, b;  // matrix descriptors
  bool a_transposed, b_transposed;
};
void matrix_product(const Product& product);
void matrix_commit();
void matrix_wait(std::uint32_t pending);

}  // namespace stretto::simulator
