#include "stretto/simulator/tasks.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace stretto::simulator {

Tasks::Tasks(int num_devices, int num_sms, std::uint64_t seed)
    : machine_(num_devices, num_sms, seed) {
  machine = &machine_;
  server_ = std::thread([this] { serve(); });
}

Tasks::~Tasks() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  added_.notify_all();
  server_.join();
}

TaskRef Tasks::add(Work work, std::vector<TaskRef> after, std::span<const int> queues) {
  auto task = std::make_shared<Task>();
  task->is_launch = work.launch != nullptr;
  task->work = std::move(work);
  std::erase_if(after, [](const TaskRef& t) { return t == nullptr; });
  std::lock_guard lock(mutex_);
  std::erase_if(after, [](const TaskRef& t) { return t->done; });
  task->after = std::move(after);
  for (int q : queues) {
    TaskRef& last = last_in_queue_[q];
    if (last != nullptr && !last->done) task->behind.push_back(last);
    last = task;
  }
  open_.push_back(task);
  added_.notify_all();
  return task;
}

bool Tasks::done(const TaskRef& task) {
  std::lock_guard lock(mutex_);
  return task == nullptr || task->done;
}

void Tasks::await(const TaskRef& task) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return task == nullptr || task->done; });
}

void Tasks::await_all() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return open_.empty(); });
}

std::string Tasks::violation() {
  std::lock_guard lock(mutex_);
  return violation_;
}

bool Tasks::may_start(const Task& task) const {
  auto begun = [](const TaskRef& t) { return t->done || t->started; };
  auto done = [&](const TaskRef& t) {
    return t->done || (task.work.early && t->is_launch && t->overlaps);
  };
  return std::ranges::all_of(task.behind, begun) && std::ranges::all_of(task.after, done);
}

void Tasks::finish(Task& task) {
  task.done = true;
  task.end_ns = machine_.timer_ns();
  task.after.clear();
  task.behind.clear();
  task.work = {};
}

void Tasks::start(const TaskRef& task) {
  task->started = true;
  std::unique_ptr<Launch> launch = task->work.launch();
  launch->may_overlap = [task = task.get()] { task->overlaps = true; };
  launch->previous_done = [after = task->after] {
    return std::all_of(after.begin(), after.end(), [](const TaskRef& t) { return t->done; });
  };
  launch->done = [this, task] { finish(*task); };
  machine_.start(std::move(launch));
}

// Whether anything began or ended.
bool Tasks::advance() {
  bool moved = false;
  for (std::size_t i = 0; i < open_.size(); ++i) {
    TaskRef task = open_[i];
    if (task->done || task->started || !may_start(*task)) continue;
    // Copies and the like take their time.
    if (!task->is_launch && machine_.busy() && machine_.draw(4) != 0) continue;
    if (!violation_.empty()) {
      finish(*task);
    } else if (task->is_launch) {
      start(task);
    } else if (!task->work.condition || task->work.condition()) {
      if (task->work.act) task->work.act();
      finish(*task);
    } else {
      continue;
    }
    moved = true;
  }
  std::size_t before = open_.size();
  std::erase_if(open_, [](const TaskRef& t) { return t->done; });
  return moved || open_.size() < before;
}

void Tasks::serve() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    bool moved = advance();
    try {
      if (machine_.busy()) moved |= machine_.run();
    } catch (const Violation& e) {
      violation_ = e.what();
      std::fprintf(stderr, "simulated GPU: %s\n", e.what());
      moved = true;
    }
    if (moved) {
      ended_.notify_all();
      // Whoever wants to add something gets the lock now and then.
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else if (open_.empty()) {
      added_.wait(lock, [&] { return stop_ || !open_.empty(); });
    } else {
      added_.wait_for(lock, std::chrono::microseconds(50));
    }
  }
}

}  // namespace stretto::simulator
