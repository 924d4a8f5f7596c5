// The machine that a prediction is about: what its units can do when they have nothing else to do,
// and what they take from each other. One JSON file per machine; docs/concepts/prediction.md
// explains the fields and where the figures of the built-in machines come from. Read by timetable.h
// and event_loop.h.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "stretto/base/dtype.h"
#include "stretto/base/json_fwd.h"

namespace stretto::predict {

// Rate over the number of SMs that work on it, as measured. Bytes per second.
struct RateCurve {
  struct Point {
    double sms, rate;
  };
  std::vector<Point> points;  // ascending in sms

  double per_sm() const;  // one SM's, before they hinder each other
  double best() const;    // many SMs': what the link gives to this way of moving bytes
};

// What else takes of the power that products live on, in seconds of products at the sustained rate
// per byte moved.
struct PowerCosts {
  double l2 = 0, hbm = 0;
  double link = 0, copied = 0;  // over links: moved by SMs, by copy engines
  double clock = 0;  // exponent: products take so much more at a higher clock (voltage rises too)
};

// Rates in units per second, times in seconds.
struct Machine {
  std::string name;
  int num_gpus = 1, num_sms = 1;
  // Dense products of the whole GPU that its power budget sustains if nothing else takes power, by
  // factor dtype.
  std::map<DType, double> tensor_flops;
  double burst = 1;  // the rate at the highest clock, over that: while the budget is not used up
  PowerCosts power;
  double vector_ops = 0;  // elementwise operations of one SM
  double overlap = 0;     // part of the shorter of products and elementwise work that is hidden
  double hbm_rate = 0, l2_rate = 0, l2_bytes = 0;
  double sm_rate = 0;       // between one SM and its GPU's memory, by bulk copies to its own
  double sm_copy_rate = 0;  // one SM's that copies from there to there
  double load_latency = 0;  // from own memory
  double thread_bytes = 1;  // under way to a thread's registers at most
  double link_rate = 0;     // per direction and GPU
  double link_latency = 0;  // a signal's, to another GPU
  double remote_load_latency = 0;
  RateCurve push, pull;        // SMs that write to and read from other GPUs
  RateCurve load;              // SMs that read into registers
  double packet_rate = 0;      // for packets
  double copy_rate = 0;        // copy engines of one GPU together
  double copy_latency = 0;     // from the start of a copy to its first byte
  double copy_setup = 0;       // the part in which its GPU's engines do nothing else
  bool copies_on_sms = false;  // roles of the copy engine run on SMs of their own
  double graph_launch = 0, eager_launch = 0;
  double notify_cost = 0;       // to the agent that notifies: it waits for its writes
  double bulk_notify_cost = 0;  // the same where bulk stores of a whole tile are still under way
  double local_signal_latency = 0;
  double k_step_cost = 0;  // per iteration of a pipelined loop
  double tile_cost = 0;    // per tile stored: registers to shared memory, descriptors, barriers
};

// A built-in machine (h200x1, ...) or the path of a JSON file. UserError naming the file and field.
Machine find_machine(const std::string& name_or_path);
std::vector<std::string> builtin_machines();
Machine read_machine(const Json& json, const std::string& where);
Json to_json(const Machine& machine);

}  // namespace stretto::predict
