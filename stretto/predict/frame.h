// What a stretch of an agent's body does between two signals, summed: its cost, the boxes it reads
// (for what the L2 cache saves), and how far it moves pipes. Loops without signals are folded into
// a frame by looking at their first and last iteration. Part of the timetable builder
// (timetable_builder.h).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "stretto/predict/cost.h"
#include "stretto/proof/eval_scope.h"
#include "stretto/proof/instance_graph.h"

namespace stretto::predict {

// A box of an own tensor that is read `bytes` altogether, if some of it more than once.
struct Read {
  int tensor = -1;
  Box box;
  double bytes = 0;
};

// Slots of the pipes between two agents: offered by the producer, or taken by the consumer.
struct Slots {
  int pipe = -1;
  double count = 0;
};

struct Frame {
  Cost cost;
  std::vector<Read> reads;
  std::vector<Slots> puts, gets;
  bool has_async_products = false;
  // Of loads that are under way together with more that follow, some of another GPU: how often all
  // that their threads can have on its way at a time.
  double loads = 0;
  bool loads_remote = false;

  void add(const Frame& other, double times);
  bool moves_pipes() const { return !puts.empty() || !gets.empty(); }
};

struct Target {
  int rank = 0;
  Box box;
  double bytes = 0;
};

// Whether any agent multiplies what another loads for it.
bool has_products(const Program& program);

// Whether a block notifies or waits, packets included.
bool has_signals(const Block& block);

class FrameBuilder {
 public:
  FrameBuilder(const Program& program, const Machine& machine,
               std::vector<std::vector<std::int64_t>> shapes)
      : program_(&program),
        machine_(&machine),
        shapes_(std::move(shapes)),
        beside_products_(has_products(program)) {}

  // The agent whose body the next operations belong to.
  void start_agent(EvalScope& scope, int rank, const Agent& agent);
  // An operation without signals; loops and conditions with all they hold.
  void add(const Op& op, Frame& frame);
  // The part of a region that lies within its tensor and limits, at the scope's values.
  Target resolve(const Region& region) const;
  double whole_bytes(const Region& region) const;  // of the region, within its tensor or not
  bool ends_between_runs(const Region& region) const;
  double add_read(const Region& region, bool waits, Frame& frame) const;  // its bytes
  void add_write(const Region& region, Frame& frame) const;

 private:
  struct LoopFacts {
    bool is_uniform = false;  // the same in every iteration but for the clipping of boxes
  };

  struct Trips {
    std::int64_t begin = 0, end = 0;
  };

  void fold(const Op& loop, Frame& frame);
  void fold_samples(const Op& loop, Trips range, Frame& frame);
  Frame iteration(const Op& loop, std::int64_t value);
  void add_compute(const Op& op, Frame& frame) const;
  void copy(const Op& op, Frame& frame) const;
  void add_latency(bool remote, double bytes, Frame& frame) const;
  void add_guarded(bool remote, double rounds, Frame& frame) const;
  const LoopFacts& facts(const Op& loop);

  const Program* program_;
  const Machine* machine_;
  std::vector<std::vector<std::int64_t>> shapes_;
  bool beside_products_ = false;
  std::unordered_map<const Op*, LoopFacts> facts_;
  EvalScope* scope_ = nullptr;
  const Agent* agent_ = nullptr;
  int rank_ = 0;
};

}  // namespace stretto::predict
