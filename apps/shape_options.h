// The options by which commands are told the shape of an operator.
#pragma once

#include <CLI/CLI.hpp>

#include "apps/program_source.h"
#include "stretto/ops/catalog/catalog.h"

namespace stretto {

// --m, --n, --k: global sizes, rows or columns; 0 where not given. --size NAME=VALUE: others, of a
// C++ file.
void add_size_options(CLI::App* command, OpShape& shape);
// --ranks, 1 to 64; `ranks` holds the default.
void add_ranks_option(CLI::App* command, int& ranks);

// UserError for --ranks, --dtype and sizes of the command line that the program cannot be of;
// `ranks` is what --ranks says. What the environment holds is meant for other programs, too.
void check_given(const CLI::App& command, const ProgramSource& source, RankRange ranks);

}  // namespace stretto
