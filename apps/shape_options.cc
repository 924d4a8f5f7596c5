#include "apps/shape_options.h"

#include <cstdint>

namespace stretto {

void add_size_options(CLI::App* command, OpShape& shape) {
  auto size = CLI::Range(std::int64_t{0}, std::int64_t{1} << 24);
  command->add_option("--m", shape.m, "global rows; 0: the operator's default")->check(size);
  command->add_option("--n", shape.n, "global columns; 0: the operator's default")->check(size);
  command->add_option("--k", shape.k, "global inner size; 0: the operator's default")->check(size);
}

void add_ranks_option(CLI::App* command, int& ranks) {
  command->add_option("--ranks", ranks, "world size")
      ->check(CLI::Range(1, 64))
      ->envname("STRETTO_RANKS")
      ->capture_default_str();
}

}  // namespace stretto
