// A line of JSON for each request, on standard error. Written by a thread of its own: whoever reads
// the log slowly, or not at all, holds up nobody; lines that find no room are counted and told of.
#pragma once

#include <memory>
#include <string>

namespace stretto {

class AccessLog {
 public:
  AccessLog();
  ~AccessLog();  // as end()
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  void add(std::string line);
  // Writes what waits, for a second at most. Lines that come later are lost.
  void end();

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too, which may be stuck in a write at the end
};

}  // namespace stretto
