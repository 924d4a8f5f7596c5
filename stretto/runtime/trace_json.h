// Writes recorded spans as Chrome trace JSON, which Perfetto opens: a process per rank, a thread
// per role and worker, an arrow from each notify to the first blocked wait that it let go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "stretto/runtime/recorder.h"

namespace stretto {

struct TraceContents {
  std::vector<Span> spans;  // in order of begin
  std::vector<NotifyMark> marks;
  std::int64_t dropped = 0;
};

// Atomic: a temporary file beside `path`, then a rename. UserError naming the path and the system's
// reason when it cannot be written; nothing is left behind.
void write_trace_json(const std::filesystem::path& path, const TraceContents& contents);

}  // namespace stretto
