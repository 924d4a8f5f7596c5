// What the host asks of the simulated GPUs: tasks that come after others, done by one thread. A
// stream is its last task, an event the task that it was recorded after, a graph a list of tasks
// to make.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "stretto/simulator/gpu_simulator.h"

namespace stretto::simulator {

struct Task;
using TaskRef = std::shared_ptr<Task>;

// One of: a copy or the like, done at once; a condition, looked at until it holds; a launch.
struct Work {
  std::function<void()> act;
  std::function<bool()> condition;
  std::function<std::unique_ptr<Launch>()> launch;
  bool early = false;  // a launch that may begin when all blocks of the one before let it
};

struct Task {
  Work work;
  std::vector<TaskRef> after;   // have to be done
  std::vector<TaskRef> behind;  // of the same hardware queues: launches have to have begun
  bool is_launch = false, started = false, overlaps = false, done = false;
  std::uint64_t end_ns = 0;
};

class Tasks {
 public:
  Tasks(int num_devices, int num_sms, std::uint64_t seed);
  ~Tasks();

  // `queues`: hardware queues that the task goes through, after all that were added to them before.
  TaskRef add(Work work, std::vector<TaskRef> after, std::span<const int> queues = {});
  bool done(const TaskRef& task);
  void await(const TaskRef& task);
  void await_all();
  // What ended all work; empty where nothing did.
  std::string violation();

 private:
  void serve();
  bool advance();
  bool may_start(const Task& task) const;
  void start(const TaskRef& task);
  void finish(Task& task);

  GpuSimulator machine_;
  std::mutex mutex_;
  std::condition_variable added_, ended_;
  std::vector<TaskRef> open_;
  std::map<int, TaskRef> last_in_queue_;
  std::string violation_;
  bool stop_ = false;
  int waiting_hosts_ = 0;
  std::thread server_;
};

}  // namespace stretto::simulator
