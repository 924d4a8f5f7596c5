// Writes that many readers come after. A clock counts how far it knows each component, so a reader
// that knows of a component's last write knows of all of them, and readers that know the same need
// one look. What is said to be over is what HappensBefore::before() says of every single pair;
// check.cc looks at those pairs one by one of which nothing is said.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "stretto/proof/happens_before.h"

namespace stretto {

class WriteFrontier {
 public:
  // Keeps a reference.
  explicit WriteFrontier(const HappensBefore& order) : order_(order) {}

  // `past`: any but kBulkLoad. All writes are added before the first question.
  void add(const ProgramPoint& write, Past past);
  // All of them are over before what is at `y`. Those of y's own agent, too, by synchronisation
  // alone: its notify comes after each, and a wait before `y` needs it.
  bool over_before(const ProgramPoint& y, Path path, int choice);

 private:
  struct OfPast {
    std::vector<HappensBefore::Mark> last;  // of each component
    std::unordered_map<std::int32_t, bool> known_over;
  };

  void find_last();
  bool over(Past past, std::int32_t knowledge) const;

  const HappensBefore& order_;
  bool found_last_ = false;
  std::array<OfPast, kNumPasts> of_past_;
};

}  // namespace stretto
