// All-to-all and all-gather of rows of which only the device knows how many go where: no host
// exchanges or waits for sizes, so one launch, or one graph, serves all of them. Each rank tells
// every other how many of its rows are for it and where they begin; the receiver then fetches
// them. It takes its own rows tile by tile, each of which is written in one place whatever the
// sizes are: sizes decide only what is read, which the proof follows for all of them.
#pragma once

#include <cstdint>
#include <string>

#include "stretto/ir/program.h"
#include "stretto/ops/operator/named_fields.h"
#include "stretto/ops/operator/operator.h"
#include "stretto/ops/operator/target.h"

namespace stretto {

struct UnevenDesc {
  DType dtype = DType::kF32;
  std::int64_t m = 1;     // bound of the run-time extent `m`, rows that a rank has room for to send
  std::int64_t room = 1;  // bound of the run-time extent `room`, rows that a rank may receive
  std::int64_t n = 1;     // columns
  int world_size = 1;
  bool wide_sizes = false;  // tables of sizes, given and made, hold 64 bits

  friend bool operator==(const UnevenDesc&, const UnevenDesc&) = default;
};

struct UnevenConfig {
  std::int64_t tile_rows = 64;  // received ones that a worker copies at a time
  // In registers at a time, of tiles that several ranks have sent.
  std::int64_t piece_rows = 16;
  std::int64_t piece_cols = 512;
  int num_workers = 1;
  int threads = 0;  // on an SM; 0: as the code generator has it

  friend bool operator==(const UnevenConfig&, const UnevenConfig&) = default;
};

NamedFields fields_of(UnevenDesc& desc);
NamedFields fields_of(UnevenConfig& config);
UnevenConfig default_config(const UnevenDesc& desc, Target target = Target::kCpu);

// Extents m, room. in [m, n], symmetric; table input_split_sizes [P, 1] i32 in 0..m, which add up
// to no more than m: so many rows of `in`, one block after the other, go to each rank ->
// out [room, n] state: the blocks that came, one after the other by rank; rows past them stay
// output_split_sizes [P, 1] i32: how many rows each rank has sent
// With wide_sizes input_split_sizes, input_size and output_split_sizes are i64.
// More rows than there is room for, or than m, are a Fault of the launch, which names the made
// table rows_for_max_rows or rows_sent; nothing is written beyond `room`. UserError naming the
// field of a bad desc or config.
Program all_to_all_v(const UnevenDesc& desc, const UnevenConfig& config);

// The same, but all ranks get the first rows of `in`, as many as table input_size [1, 1] i32 says,
// which is in 0..m.
Program all_gather_v(const UnevenDesc& desc, const UnevenConfig& config);

// m: rows of a rank, n: columns, k: room for rows, 0: for all that may come.
UnevenDesc uneven_desc(const OpShape& shape);
UnevenConfig uneven_config(const UnevenDesc& desc, Target target);  // small tiles for small shapes
OperatorInfo all_to_all_v_info();
OperatorInfo all_gather_v_info();

}  // namespace stretto
