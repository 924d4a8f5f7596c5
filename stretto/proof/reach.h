// Accesses that never meet their tensor. What lies outside is masked, so that such a load reads
// zeros and such a store does nothing: its author meant another place. Noted while programs are
// expanded, judged by prove.cc over all ranks, all sizes that it looks at and all tables.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stretto/proof/instance_graph.h"
#include "stretto/proof/loop_fold.h"

namespace stretto {

// How a box lies to its tensor, masks by row_end and col_end aside.
enum class Lie : std::uint8_t {
  kNowhere,  // one of the two has no elements
  kMeets,
  kBeside,  // outside by less than its own size, where it moves: half of a ragged tile, a halo
  kFar,
  // Far, and not for want of rows: of n boxes split among P ranks, ceil(n / P) each, every rank has
  // some where n > (P - 1)^2, and the tensor has room for so many.
  kAstray,
};
// `box`: of the region, or all that it is in a loop or for some values of a table; `shape`: of the
// region's tensor.
Lie lie_of(const Program& program, const Region& region, const LooseBox& box,
           const std::vector<std::int64_t>& shape);

// What a line of the program does to a tensor, over the graphs that were added.
class UnmetTensors {
 public:
  void add(const InstanceGraph& graph, const std::string& where);
  void add(const UnmetTensors& later);
  // Whether every line meets its tensor somewhere.
  bool all_meet() const;
  // Of each line that accesses a tensor and never meets it, one access and its case.
  std::vector<std::pair<std::string, std::string>> findings() const;
  // Of each that meets it on some ranks, and on others is astray.
  std::vector<std::string> notes() const;

 private:
  struct OnRank {
    bool meets = false, astray = false;
    std::string text, where;  // the first that lies far outside, and its case
  };
  using Line = std::map<int, OnRank>;
  static bool any_meets(const Line& line);

  // File, line, tensor, and which of an operation's accesses.
  std::map<std::tuple<std::string, int, int, int>, Line> lines_;
};

}  // namespace stretto
