// A step plan on what runs it: memory assigned, programs proved, loaded and bound once, so that a
// step is a list of launches. One interface, whether a rank is a CPU (cpu_runner.h) or all GPUs of
// a process are driven by one thread (gpu_runner.h). Comes after check.h and memory.h.
//
// A caller writes inputs, runs sections, in the plan's order as far as they have locals in common
// (memory.h gives them memory by that order), any of them again, and reads outputs. All calls but
// input() are collective over the ranks: all run the same sections in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "stretto/step/memory.h"
#include "stretto/step/plan.h"

namespace stretto::step {

class Runner {
 public:
  virtual ~Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  const Plan& plan() const { return plan_; }
  const Memory& memory() const { return memory_; }

  // Where the host writes an input, dense as the plan has it, before the first section that reads
  // it; it stays what it is until it is written again. On GPUs waits until nothing that was
  // enqueued reads what the host wrote before. InternalError for a name that is none.
  virtual std::byte* input(const std::string& buffer) = 0;
  // `values` are those of Plan::extents, all within their bounds, else InternalError. On GPUs
  // returns when all is enqueued. UserError and Fault as Launch::run.
  void run(const std::string& section, const std::vector<std::int64_t>& values);
  // Copies entries of the first dimension of a buffer, one after the other, to the beginning of
  // another, when what has been run is done. `to` is an input that the host does not write.
  virtual void copy_rows(const std::string& from, std::span<const std::int64_t> rows,
                         const std::string& to) = 0;
  // The first bytes of an output, when what has been run is done; valid until the next call. Of
  // several ranks of this process the first one's. Fault where a wait was aborted.
  virtual const std::byte* read(const std::string& output, std::size_t bytes) = 0;

 protected:
  // UserError as check().
  Runner(Plan plan, Sharing sharing, bool poison);

  virtual void run_section(const Section& section, const std::vector<std::int64_t>& values) = 0;

  // Of a node; valid until the next call.
  std::span<const std::int64_t> extents_of(const Node& node,
                                           const std::vector<std::int64_t>& values);
  static bool is_passed_over(std::span<const std::int64_t> extents) {
    return !extents.empty() && extents.front() == 0;
  }
  int index_of(const std::string& buffer) const;  // InternalError for a name that is none
  // Of the arena, what no node needs any more, or yet, when this one runs; empty unless poisoned.
  const std::vector<Range>& unneeded(std::size_t node) const;

 private:
  const Plan plan_;
  const Memory memory_;
  std::unordered_map<std::string, int> index_;  // of buffers
  std::vector<std::vector<Range>> unneeded_;    // by node
  std::vector<std::int64_t> extents_;
};

}  // namespace stretto::step
