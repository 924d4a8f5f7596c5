// Loops over the slots of pipes, of which a few iterations stand for all.
//
// A worker's agents pass slots in loops that do nothing else: the producer reads into them, the
// consumer multiplies them. Every iteration after the pipe is full does as the one before, nobody
// outside can see which of them is under way, and nothing is written that anybody could read. So
// the first iterations, one more than there are slots, and the last one are walked, the reads of
// those in between are counted to the last one, and every agent leaves out as many of the loop.
//
// Why nothing is missed: leaving out puts, gets and releases alike leaves out edges and adds none.
// What an agent knows of others does not change in the loop but by the pipe's own edges, of which
// the iterations that are walked have every kind (a put that waits for a release of the same loop
// among them); so a read is as much before and after other agents' events as one at the last
// iteration. And a cycle of waits shows itself in the first iterations: the order in which slots
// are passed repeats with every iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "stretto/ir/program.h"

namespace stretto {

// The agents of a worker do not leave out the same: walk every iteration instead.
struct UnevenPipeLoops {};

class PipeLoops {
 public:
  void start_worker(const Role& role);
  void start_agent();

  struct Loop {
    int pipe = -1;            // of those that it passes the first
    std::int64_t tile = -1;   // in which the agent enters it
    std::int64_t passed = 0;  // slots of the pipe that it has walked over before
    std::int64_t trips = 0;
    std::int64_t slots = 1;  // of an iteration (stagger_products.h)
  };
  // How many iterations the agent leaves out: as many slots as the first agent to come to the pipe
  // has left out of a loop over the same ones, if it has. UnevenPipeLoops where that was another
  // tile's, or more than this loop has, or where no iteration ends.
  std::int64_t left_out(const Loop& loop);
  bool any_left_out() const { return any_left_out_; }
  // So many slots of a loop, at least, show what the others do.
  std::int64_t walked() const { return walked_; }
  std::int64_t step() const { return step_; }

 private:
  // Where the first agent has left out some: slots [begin, end) of all that it would have passed.
  struct Entered {
    std::int64_t tile, begin, end, left_out;
  };
  struct OfPipe {
    int first_agent = -1;
    std::vector<Entered> entered;
  };
  struct OfAgent {
    std::size_t next = 0;
    std::int64_t left_out = 0;  // slots, so far
  };

  std::int64_t walked_ = 0;  // slots at least
  std::int64_t step_ = 1;    // the most slots that an iteration of any agent passes
  int agent_ = 0;
  std::map<int, OfPipe> of_pipe_;    // of the worker
  std::map<int, OfAgent> of_agent_;  // by pipe
  bool any_left_out_ = false;
};

}  // namespace stretto
