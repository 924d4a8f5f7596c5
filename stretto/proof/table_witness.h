// What is in the tables of a launch, as far as somebody knows it: by the proof's witnesses
// (sample.h), or by who asks for a prediction (predict/launch_tables.h). Comes before expand.h,
// which takes its values as they are.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace stretto {

// The contents of every table on every rank.
class TableWitness {
 public:
  virtual ~TableWitness() = default;
  virtual std::int64_t value(int rank, int tensor_idx,
                             std::span<const std::int64_t> index) const = 0;
  virtual std::string name() const = 0;
};

}  // namespace stretto
