// Which kernels may run at the same time on one GPU. A kernel that waits for other ranks keeps its
// SMs until they have come: two that do not fit together, and start in another order elsewhere,
// would wait for each other for ever. So kernels whose blocks all fit may overlap, and one that
// does not fit waits for all that were enqueued before it. What runs then is a generation; its
// first launch comes after all of the generation before, the others after that point. Order that
// streams have anyway needs nothing.
//
// One per GPU of a process (gpu_ledger.h); gpu_world.h asks it before each launch. It never looks
// whether work is done: waiting for an event that has passed costs nothing on the device.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {

struct SmDemand {
  std::string_view program;  // for messages
  int blocks = 1;            // each may take an SM of its own
  int cluster = 1;           // blocks that need SMs of one group (GPC)
};

// Streams says what a stream is, so that the tests need no GPU:
//   Stream, Event
//   static Stream keep(const Stream&)                 a copy, which the ledger keeps
//   static bool same(const Stream&, const Stream&)
//   static std::uint64_t capture_of(const Stream&)    the capture under way, 0: none
//   Event record(const Stream&)                       the work that the stream has so far ...
//   void wait(const Stream&, const Event&)            ... comes before what it gets next
template <typename Streams>
class SmLedger {
 public:
  using Stream = typename Streams::Stream;
  using Event = typename Streams::Event;

  // num_sms: those that waiting kernels may take.
  SmLedger(int num_sms, Streams streams) : num_sms_(num_sms), streams_(std::move(streams)) {}

  // Before a launch on `stream`: makes it wait where needed. UserError where captured launches
  // would have to wait for what is not in their graph; nothing is noted then. Returns the capture
  // that the launch becomes part of, 0: none.
  std::uint64_t admit(const Stream& stream, const SmDemand& demand) {
    Book& book = book_of(Streams::capture_of(stream));
    if (book.capture != 0) check_other_captures(book, stream, demand);
    Lane* lane = find(book, stream);
    if (!fits(need_of(book, lane, demand))) {
      begin_generation(book, stream, demand);
      return book.capture;
    }
    if (lane == nullptr) {
      if (book.start) streams_.wait(stream, *book.start);
      book.lanes.push_back({Streams::keep(stream), 0, 1});
      lane = &book.lanes.back();
    }
    lane->blocks = std::max(lane->blocks, demand.blocks);
    lane->cluster = std::max(lane->cluster, demand.cluster);
    return book.capture;
  }

  // Nothing runs any more.
  void clear() { running_ = {}; }

 private:
  // What a stream has in this generation, one after the other.
  struct Lane {
    Stream stream;
    int blocks, cluster;
  };
  // Launches that run, or those of one capture, which run when its graph does.
  struct Book {
    std::uint64_t capture = 0;  // 0: none
    std::vector<Lane> lanes;
    std::optional<Event> start;  // none in the first generation
  };
  struct Need {
    int lanes = 0, blocks = 0, cluster = 1;
    void add(int more_blocks, int with_cluster) {
      ++lanes;
      blocks += more_blocks;
      cluster = std::max(cluster, with_cluster);
    }
  };

  // Blocks of other kernels may leave up to cluster - 1 SMs of each GPC that no cluster can take.
  static constexpr int kGpcs = 8;

  static Lane* find(Book& book, const Stream& stream) {
    for (Lane& lane : book.lanes) {
      if (Streams::same(lane.stream, stream)) return &lane;
    }
    return nullptr;
  }

  Book& book_of(std::uint64_t capture) {
    if (capture == 0) return running_;
    for (Book& b : captured_) {
      if (b.capture == capture) return b;
    }
    // A capture that has ended needs its book no more.
    std::erase_if(captured_, [](const Book& b) { return !under_way(b); });
    captured_.push_back({.capture = capture});
    return captured_.back();
  }

  static bool under_way(const Book& book) {
    return std::any_of(book.lanes.begin(), book.lanes.end(), [&](const Lane& lane) {
      return Streams::capture_of(lane.stream) == book.capture;
    });
  }

  bool fits(const Need& need) const {
    return need.lanes <= 1 || need.blocks + kGpcs * (need.cluster - 1) <= num_sms_;
  }

  // What the lanes and the launch need together. `own`: the launch's lane, may be null.
  static Need need_of(const Book& book, const Lane* own, const SmDemand& demand) {
    Need need;
    for (const Lane& lane : book.lanes) {
      if (&lane != own) need.add(lane.blocks, lane.cluster);
    }
    need.add(std::max(own == nullptr ? 0 : own->blocks, demand.blocks),
             std::max(own == nullptr ? 1 : own->cluster, demand.cluster));
    return need;
  }

  // Graphs that are captured side by side may run side by side.
  void check_other_captures(Book& book, const Stream& stream, const SmDemand& demand) const {
    Need need = need_of(book, find(book, stream), demand);
    bool others = false;
    for (const Book& other : captured_) {
      if (other.capture == book.capture || !under_way(other)) continue;
      for (const Lane& lane : other.lanes) need.add(lane.blocks, lane.cluster);
      others = true;
    }
    if (!others || fits(need)) return;
    throw UserError(
        fmt::format("{}: captured beside another capture of the same rank, and their kernels do "
                    "not fit together on {} SMs: capture them one after the other, or as one graph",
                    demand.program, num_sms_));
  }

  void begin_generation(Book& book, const Stream& stream, const SmDemand& demand) {
    for (const Lane& lane : book.lanes) {
      if (Streams::capture_of(lane.stream) == book.capture) continue;
      throw UserError(
          fmt::format("{}: does not fit beside what runs on a stream that has begun a capture "
                      "since, and cannot wait for it: synchronize before the capture",
                      demand.program));
    }
    for (const Lane& lane : book.lanes) {
      if (Streams::same(lane.stream, stream)) continue;
      streams_.wait(stream, streams_.record(lane.stream));
    }
    book.start = streams_.record(stream);
    book.lanes.clear();
    book.lanes.push_back({Streams::keep(stream), demand.blocks, demand.cluster});
  }

  int num_sms_;
  Streams streams_;
  Book running_;
  std::vector<Book> captured_;
};

}  // namespace stretto
