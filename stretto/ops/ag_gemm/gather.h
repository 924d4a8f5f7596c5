// The roles that gather what the ranks hold into one tensor while another role multiplies what has
// arrived. A program declares tensors and signals, adds a role, and waits for rows where it reads
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/gemm/row_runs.h"

namespace stretto {

enum class Gather : std::uint8_t {
  kPull,  // copy engines fetch the peers' rows into a private buffer
  kSend,  // copy engines write the own rows into the peers' symmetric buffers
  kPush,  // SMs write the own rows into the peers' symmetric buffers
};

const char* name(Gather gather);  // "pull", "send", "push"

// What the roles work on. Transfers are blocks of rows of one rank.
struct Gathered {
  // The factor, and its scales where it has them.
  struct Part {
    TensorRef own;   // this rank's rows
    TensorRef full;  // the rows of all ranks but the own ones, by rank
    std::int64_t cols;
  };
  int world_size;
  std::vector<Part> parts;
  RowRuns transfers;  // how the ranks' rows travel
  SignalRef arrived;  // by owner and channel of its rows: transfers that lie in `full`
  SignalRef ready;    // by rank: its rows may be read (pull), its `full` written (push)
};

// One rank's rows of a transfer.
struct Transfer {
  Slice from, to;
};
Transfer transfer(const RowRuns& runs, const Gathered::Part& part, const Index& owner,
                  const Index& block);

// Tells the peers that they may read (pull) or write (push), and declares who moves rows: as many
// copy queues (kPull: at most one per peer) or SMs (kPush).
void gather_rows(ProgramBuilder& p, Gather gather, int num_workers, const Gathered& g);

// The same by pushing so many of the own blocks to every peer, to one after the other, before the
// next ones: for rows that are multiplied with the same rows of all ranks.
void gather_groups(ProgramBuilder& p, Gather gather, int num_workers, std::int64_t group_blocks,
                   const Gathered& g);

// Waits for all transfers with rows of [row, row + count) of the owner's.
void wait_for_rows(ProgramBuilder& p, const Gathered& g, const Index& owner, const Index& row,
                   std::int64_t count);

}  // namespace stretto
