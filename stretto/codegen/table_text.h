// Tables in generated kernels: how an entry is read, and the check of contracts with which a kernel
// begins (device/sm90/table.h).
#pragma once

#include <cstdint>
#include <string>

#include "stretto/codegen/launch_plan.h"
#include "stretto/ir/program.h"

namespace stretto {

// The entry that a kTable expression reads, within its contract's range.
std::string table_entry_text(const Program& program, const ExprNode& node);

// Checks every table that is an input, by all blocks before their roles, and names the sites of
// those that the launch makes, which are checked where they are read; empty where there is none.
// Adds a site per table, and the shared memory that it takes to tell whether entries are distinct.
std::string table_checks_text(const Program& program, LaunchPlan& launch);

// "table 'routes' breaks its contract: entry 3 is 9, need 0 <= entry < 8, ascending".
std::string describe_broken_table(const Program& program, int tensor, std::int64_t entry,
                                  std::int64_t value);

}  // namespace stretto
