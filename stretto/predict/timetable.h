// One launch of a program on a machine as the event loop runs it: for every rank, worker and agent
// the waits, notifies and pieces of work in program order, with what each piece takes from the
// machine. timetable_builder.h makes it, event_loop.h runs it.
//
// Loops without signals are folded into one piece of work. Pipes are folded with them: a producer
// offers groups of slots to load, a consumer's piece of work takes a number of slots.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto::predict {

// What the workers of a GPU share. A resource is rank * kNumUnits + unit; amounts per second.
enum Unit : int {
  kTensor,   // seconds at the sustained rate
  kL2,       // bytes
  kHbm,      // bytes
  kLinkOut,  // bytes
  kLinkIn,   // bytes
  kCopy,     // bytes moved by copy engines
  kNumUnits,
};
const char* name(Unit unit);  // "tensor", "l2", "hbm", "nvlink", "nvlink", "copy_engine"

struct Demand {
  int resource = 0;
  double amount = 0;
  bool is_comm = false;    // would not be there if communication were free
  bool by_engine = false;  // a copy engine's
};

// A piece of work of one agent.
struct Work {
  double latency = 0;         // before anything moves
  double remote_latency = 0;  // the part of it that free communication would not have
  double own = 0;             // seconds on an otherwise idle machine, without the latency
  double own_local = 0;       // the same if communication were free
  double compute = 0;         // the part of both that takes longer at a lower clock
  bool uses_tensor = false;   // multiplies: consumers of one worker take turns
  std::vector<Demand> demands;
};

enum class StepKind : std::uint8_t { kTile, kWait, kNotify, kWork, kPut, kGet };

struct Step {
  StepKind kind = StepKind::kTile;
  int counter = -1;         // kWait, kNotify
  int work = -1;            // kWork, kGet; kPut: all its slots together, -1 where nothing
  int link = -1;            // kPut, kGet
  std::int64_t amount = 0;  // kWait: at least; kNotify: added; kPut, kGet: slots
  std::int64_t tile = -1;   // kTile
  double cost = 0;          // kNotify: seconds, if it is the first of several
  double delay = 0;         // kNotify: until it is seen
  bool is_remote = false;   // kNotify
  const Op* op = nullptr;   // kWait, kNotify
};

enum class Stage : std::uint8_t { kStart, kRoles, kEnd };

struct TimetableAgent {
  int rank = 0;
  Stage stage = Stage::kRoles;
  int role = -1, worker = 0, agent = 0;
  int tensor_turn = -1;  // the worker's turn on the tensor core, where several agents multiply
  std::vector<Step> steps;
};

// The pipes from one agent to another of the same worker.
struct Link {
  double num_slots = 0;
  double num_bytes = 0;  // in the slots that can be on their way: all but the one being read
  int ring = 0;          // the link whose slots these are: itself, or one before it (Pipe::shares)
};

struct Timetable {
  std::shared_ptr<const Program> program;
  std::vector<TimetableAgent> agents;  // rank by rank: on_start, on_end, then the roles' agents
  std::vector<Work> works;
  std::vector<Link> links;
  std::vector<double> capacity;  // per resource
  // What an amount of each unit takes from the power budget, in seconds: a launch that is repeated
  // takes no less time than the power of its GPU asks for.
  std::array<double, kNumUnits> power{};
  double copied_power = 0;  // the same of links, of what copy engines move
  double burst = 1;         // the highest clock over the sustained one; `compute` is at the highest
  double clock_power = 0;   // what products take of the budget grows with this power of the clock
  std::vector<std::string> counters;  // what waits for them, for the report of a deadlock
  int num_tensor_turns = 0;
  double launch = 0;  // seconds before on_start

  int num_counters() const { return static_cast<int>(counters.size()); }
};

}  // namespace stretto::predict
