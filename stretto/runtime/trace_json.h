// Recorded events as Chrome trace JSON, streamed: what grows with the trace is one small entry per
// event, never its text. Called by Recorder::write_trace.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "stretto/runtime/recorder_state.h"

namespace stretto {

struct TraceGroup {
  const std::vector<RankEvents>* ranks = nullptr;
  std::string name;
};

// UserError naming the path when it cannot be written; nothing is left behind then.
void write_trace_json(const std::vector<TraceGroup>& groups,
                      const std::map<std::string, std::string>& notes,
                      const std::filesystem::path& path);

}  // namespace stretto
