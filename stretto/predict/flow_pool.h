// Pieces of work in flight on shared resources. A flow alone takes `own` seconds; where the flows
// on a resource want more of it than there is, all of them slow down by the same factor, and a flow
// goes at the pace of its scarcest resource. That is proportional sharing: unlike max-min fairness
// it does not hand on what a flow held up elsewhere leaves over, and in return each change costs
// little, since flows on the same resources share one clock.
#pragma once

#include <cstdint>
#include <map>
#include <queue>
#include <vector>

#include "stretto/predict/timetable.h"

namespace stretto::predict {

class FlowPool {
 public:
  // `free_communication`: demands of communication take nothing.
  FlowPool(std::vector<double> capacity, bool free_communication);

  struct Part {
    const Work* work = nullptr;
    double share = 1;  // of the work's demands
  };
  // A flow that takes `own` > 0 seconds alone, or longer where the resources bound it. Ids are used
  // again after the flow has ended.
  int start(double own, const Part* parts, int num_parts, double now);
  // Ends it; what was left, as a fraction.
  double cancel(int id, double now);

  struct Next {
    double time = 0;
    int id = -1;
  };
  bool empty() const { return num_flows_ == 0; }
  // The flow that ends first, if nothing changes; id -1 where there is none.
  Next next(double now);

 private:
  struct Use {
    int resource;
    double load;
  };
  struct Flow {
    int lane = -1;
    double end = 0, own = 0;  // on its lane's clock
    std::uint64_t serial = 0;
    std::vector<Use> uses;
  };
  struct FlowEnd {
    double end;
    std::uint64_t serial;
    int id;
    bool operator>(const FlowEnd& other) const {
      return end != other.end ? end > other.end : serial > other.serial;
    }
  };
  // The flows that use the same resources.
  struct Lane {
    std::vector<int> resources;
    double clock = 0, since = 0, rate = 1;  // clock at time `since`
    int num_flows = 0;
    bool is_stale = false;      // its first end has to be found again
    std::uint64_t version = 0;  // of its entry in lane_ends_
    std::priority_queue<FlowEnd, std::vector<FlowEnd>, std::greater<>> ends;
  };
  struct LaneEnd {
    double time;
    std::uint64_t serial;  // of the flow
    int lane, id;
    std::uint64_t version;
    bool operator>(const LaneEnd& other) const {
      return time != other.time ? time > other.time : serial > other.serial;
    }
  };

  double clock(const Lane& lane, double now) const {
    return lane.clock + lane.rate * (now - lane.since);
  }
  void use(int resource, double load);
  int lane_of(const std::vector<Use>& uses);
  void mark(int lane);
  void remove(int id, double now);
  // Rates and first ends of the lanes whose resources or flows have changed.
  void refresh(double now);

  std::vector<double> capacity_, load_, pace_;  // per resource; pace: what is got of what is wanted
  std::vector<int> num_users_;
  std::vector<std::vector<int>> lanes_of_;  // per resource
  bool free_communication_;
  std::vector<Flow> flows_;
  std::vector<int> unused_;
  std::vector<Lane> lanes_;
  std::map<std::vector<int>, int> lane_by_resources_;
  std::priority_queue<LaneEnd, std::vector<LaneEnd>, std::greater<>> lane_ends_;
  std::vector<int> changed_resources_, changed_lanes_;
  std::uint64_t serial_ = 0;
  int num_flows_ = 0;
};

}  // namespace stretto::predict
