// For a report of two accesses without order: the waits that look as if they gave one, and what
// they may end without. Used by check.cc.
#pragma once

#include <string>

#include "stretto/proof/happens_before.h"

namespace stretto {

// Of the latest wait for a signal before either point, by a counter that the other's agent brings
// further after its own point: "the wait at a.cc:7 for signal 's'[0] of rank 1 to reach 2 may end
// without the notify at a.cc:9"; for both, joined. Or that there is none.
std::string short_waits(const Timeline& timeline, const ProgramPoint& x, const ProgramPoint& y);

}  // namespace stretto
