// Happens-before over one controlled run: a vector clock per agent, joined where a counter, packet,
// pipe or barrier is acquired, and every access to a tensor compared with the earlier ones it
// overlaps. Two conflicting accesses without order are a race, whatever the schedule made of them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "stretto/executor/machine.h"

namespace stretto {

class RaceDetector {
 public:
  RaceDetector(const Program& program, int num_agents);

  // Everything `from` did so far happens before what `to` does from now on.
  void order(int from, int to);

  // Who accessed, for the report.
  struct Where {
    int rank = -1;
    std::string role;
    std::int64_t tile = -1;
    std::uint64_t epoch = 0;
    SourceLoc loc;
  };
  struct Access {
    TouchKind kind = TouchKind::kRead;
    Observer::Box box;
    int slot = 0;
    Where where;
  };
  void access(int agent, const Access& access);
  void notify(int agent, int rank, std::int64_t counter);
  void acquire(int agent, int rank, std::int64_t counter);
  void store_packet(int agent, const Access& access);
  void load_packet(int agent, const Access& access);
  void release(int agent, const void* object);
  void acquire(int agent, const void* object);

  bool found() const { return !report_.empty(); }
  const std::string& report() const { return report_; }  // of the first race

 private:
  using Clock = std::vector<std::uint32_t>;
  struct Record {
    int agent;
    std::uint32_t time;
    Access access;
  };
  struct PacketStore {
    Observer::Box box;
    std::uint64_t epoch;
    Clock clock;
  };
  using Storage = std::tuple<int, int, int>;  // tensor, rank, slot

  Clock& clock(int agent) { return clocks_[static_cast<std::size_t>(agent)]; }
  void publish(int agent, Clock& to);
  std::string describe(const Access& access) const;

  const Program& program_;
  std::vector<Clock> clocks_;
  std::map<Storage, std::vector<Record>> accesses_;
  std::map<std::pair<int, std::int64_t>, Clock> counters_;
  std::map<Storage, std::vector<PacketStore>> packets_;
  std::map<const void*, Clock> objects_;
  std::string report_;
};

}  // namespace stretto
