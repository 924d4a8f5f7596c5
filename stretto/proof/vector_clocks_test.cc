// Clocks that share chunks, and those that are kept as what they are made of, against plain
// vectors. If a clock said more than was merged into it, a race would pass for ordered.
#include "stretto/proof/vector_clocks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "stretto/base/test_seed.h"

namespace stretto {
namespace {

using Plain = std::vector<std::int32_t>;

void raise(Plain& to, const Plain& by, int component, std::int32_t value) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], by[i]);
  if (component >= 0) {
    std::int32_t& one = to[static_cast<std::size_t>(component)];
    one = std::max(one, value);
  }
}

// Each step makes a clock of others by lot, in one of three ways. Some go on from the last one, as
// an agent that loads packets in a row does; some take what was never merged.
TEST(VectorClocks, AreTheLargestOfWhatTheyAreMadeOf) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE(fmt::format("STRETTO_TEST_SEED={}", seed));
  std::mt19937_64 random(seed);
  auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  for (int components : {1, 15, 16, 17, 130, 300}) {
    VectorClocks clocks;
    clocks.reset(components);
    std::vector<std::int32_t> ids = {0};
    std::vector<Plain> plain = {Plain(static_cast<std::size_t>(components), 0)};
    auto any = [&] { return static_cast<std::size_t>(below(ids.size())); };
    for (int step = 0; step < 600; ++step) {
      std::size_t from = random() % 2 == 0 ? ids.size() - 1 : any();
      std::vector<VectorClocks::Source> sources;
      Plain expected = plain[from];
      int way = below(3);
      for (int i = way == 1 ? 1 + below(4) : 1; i > 0; --i) {
        std::size_t by = any();
        int component = below(static_cast<std::size_t>(components) + 1) - 1;
        sources.push_back({ids[by], component, below(1'000)});
        raise(expected, plain[by], component, sources.back().value);
      }
      const VectorClocks::Source& s = sources[0];
      std::int32_t made = way == 0   ? clocks.merge(ids[from], s.clock, s.component, s.value)
                          : way == 1 ? clocks.merge(ids[from], sources)
                                     : clocks.later(ids[from], s);
      ids.push_back(made);
      plain.push_back(expected);
      std::size_t look = step % 2 == 0 ? ids.size() - 1 : any();
      for (int c = 0; c < components; ++c) {
        ASSERT_EQ(clocks.component(ids[look], c), plain[look][static_cast<std::size_t>(c)])
            << "component " << c << " of " << components << ", step " << step << ", way " << way;
      }
    }
  }
}

}  // namespace
}  // namespace stretto
