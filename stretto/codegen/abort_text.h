// What a kernel does once one of its waits has been aborted: it neither stores to other ranks nor
// notifies anybody, to the end (device/sm90/signal.h).
#pragma once

#include <string>
#include <vector>

#include "stretto/codegen/launch_plan.h"
#include "stretto/ir/program.h"

namespace stretto {

// Of each role whether others could see what its blocks do after an aborted wait, those
// who work beside it included. All roles' blocks where the launch makes the tables that it goes by.
std::vector<bool> roles_that_heed_aborts(const Program& program, const std::vector<Role>& roles);

// The word of shared memory that tells a block's agents that a wait was aborted, where one of
// `heeding_roles`, on_start or on_end heeds it and there are other ranks, or made tables; ""
// elsewhere. Adds the shared memory that it takes.
std::string aborted_word_text(const Program& program, const std::vector<bool>& heeding_roles,
                              LaunchPlan& launch);

// Sets it to zero, by all threads of a block; "" without one.
std::string begin_aborted_word_text(const std::string& word);

// Whether others could see that a block goes on after an aborted wait.
bool reaches_others(const Block& block);
// Whether the region may be another rank's.
bool of_another_rank(const Region& region);

}  // namespace stretto
