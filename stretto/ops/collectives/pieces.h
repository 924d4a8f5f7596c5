// What the programs of the collectives share: how rows are cut into runs and tiles, and tiles into
// pieces that fit into registers.
#pragma once

#include <cstdint>
#include <functional>

#include "stretto/lang/program_builder.h"
#include "stretto/ops/collectives/collectives.h"

namespace stretto::collective {

// What of a config has a meaning beyond tiles and workers.
struct Form {
  const char* name;             // of the collective
  bool pushes = false;          // it has a form for CollectiveConfig::push
  bool several_workers = true;  // not of the ring
  bool one_hop = true;          // not of the all-reduce
};
// UserError naming the field of a bad desc or config, or of one that the form has no use for.
void check(const Form& form, const CollectiveDesc& d, const CollectiveConfig& c);

// The program, its roles with as many threads as the config says.
Program finish(ProgramBuilder& p, const CollectiveConfig& cfg);

// The rows of [m, n] in runs of ceil(m / P), one per rank, and a run in tiles whose number follows
// from the largest m, so that every launch notifies equally often.
struct Runs {
  Index m, run_rows;
  std::int64_t tiles_per_run;

  Runs(const Index& rows, const CollectiveDesc& d, const CollectiveConfig& cfg);

  Index first(const Index& owner) const { return owner * run_rows; }
  Index end(const Index& owner) const { return min(m, (owner + 1) * run_rows); }
};

// Of a tile, in registers at a time.
std::int64_t rows_held(const CollectiveConfig& cfg);

// fn(first row, rows) for the parts of a tile that go through registers one after the other.
void for_pieces(ProgramBuilder& p, const CollectiveConfig& cfg,
                const std::function<void(const Index&, std::int64_t)>& fn);

// How results come out of what parts were reduced to: an average is divided, a premultiplied sum
// multiplied by the launch's float `factor`, before it is rounded to the desc's type. Declared
// after the extents.
class Rounding {
 public:
  Rounding(ProgramBuilder& p, const CollectiveDesc& d);
  Value operator()(const Value& sum) const { return cast(scaled(sum), dtype_); }
  Value scaled(const Value& sum) const;

 private:
  ProgramBuilder& p_;
  DType dtype_;
  Reduction reduction_;
  FloatScalar factor_;
};

// The forms in which senders write into slots of the receivers' memory (CollectiveConfig::push),
// for worlds of several ranks.
Program push_all_gather(const CollectiveDesc& d, const CollectiveConfig& cfg);
Program push_reduce_scatter(const CollectiveDesc& d, const CollectiveConfig& cfg);
Program push_all_reduce(const CollectiveDesc& d, const CollectiveConfig& cfg);
Program push_all_to_all(const CollectiveDesc& d, const CollectiveConfig& cfg);

}  // namespace stretto::collective
