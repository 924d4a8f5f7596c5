// All run-time sizes up to their bounds, in boxes of sizes that do alike (size_region.h). One size
// of each box is expanded; what is left beside the region that it stands for is looked at next,
// until nothing is left.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stretto/proof/size_region.h"

namespace stretto {

struct InstanceGraph;
struct Program;

struct SizePiece {
  SizeBox box;
  SizePoint sample{};
};

struct SizePartition {
  SizeAxes axes;
  std::vector<SizePiece> pieces;  // disjoint; the first one's sample is the bounds
};

// Why there is no partition, for a report: a source line, and what in the program it comes of. Both
// may be empty. `too_large`: they were not looked for any further (MostPieces::most_times).
struct NoPieces {
  std::string where, expression;
  bool too_large = false;
  std::vector<std::int64_t> extents;  // walked when something is thrown
};

// Absent where there are more than `most` pieces, more sizes than kMaxSizeAxes has room for, or
// tables, whose contracts go by sizes in ways that are not followed.
std::unique_ptr<SizePartition> partition_sizes(const Program& program, std::size_t most,
                                               NoPieces& why);

// What is left open besides masks: waits as SizeRegion says, loops as open_loops.h does.
struct LeftOpen {
  WaitsOpen waits = WaitsOpen::kAll;
  bool loops = false;
  // Not what blocks of rows a size has: it is written with one digit more, of which the first
  // counts blocks.
  bool blocks = false;
  // Sizes are written as what they lack of a multiple, and of whole blocks.
  bool short_of = false;
};
// Whether sizes are divided by numbers so large that the digit makes a difference.
bool counts_blocks(const Program& program);
// Whether `short_of` makes a difference.
bool has_remainders(const Program& program);

// The same with masks left open (size_masks.h), so that there are few pieces, and what each of them
// does. `taken` gets every piece's graph, until it says that this is enough: none then, nor where
// masks cannot be left open.
using OnPiece = std::function<bool(const SizePartition& so_far, InstanceGraph graph)>;
// How many pieces: from `at_least` to `at_most`, so that their events add up to no more than
// `events` where a piece has half of those that the first one has, at the bounds.
// `most_times`: no more events together than so many times the first piece's; 0: any.
struct MostPieces {
  std::size_t at_least, at_most, events;
  int most_times = 0;
};
std::unique_ptr<SizePartition> partition_with_masks(const Program& program, const MostPieces& most,
                                                    LeftOpen open, NoPieces& why,
                                                    const OnPiece& taken);

}  // namespace stretto
