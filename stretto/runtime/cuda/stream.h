// Streams, events and captured graphs. A stream's calls only enqueue; each makes the stream's
// device current on the calling thread. One thread at a time may use a stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stretto/runtime/cuda/device.h"

namespace stretto::cuda {

class Event {
 public:
  enum class Timing { kOff, kOn };
  explicit Event(const Device& device, Timing timing = Timing::kOff);

  CUevent handle() const { return event_.get(); }
  bool ready() const;        // never recorded: true
  void synchronize() const;  // without a deadline

 private:
  Owned<CUevent, &Driver::event_destroy> event_;
};

// Both events have Timing::kOn and have passed; the resolution is about half a microsecond.
double elapsed_ms(const Event& from, const Event& to);

enum class WaitUntil {
  kAtLeast,  // cyclic comparison of 64-bit values
  kEqual,
};

// `rows` rows of row_bytes each, a pitch apart; bytes. Pitches are at least row_bytes.
struct RowsCopy {
  CUdeviceptr to = 0, from = 0;
  std::size_t to_pitch = 0, from_pitch = 0;
  std::size_t row_bytes = 0, rows = 0;
};

class GraphExec;

class Stream {
 public:
  // It is not ordered with the null stream. Lower priority numbers go first, 0 is the lowest.
  explicit Stream(const Device& device, int priority = 0);
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;
  // A stream that somebody else made on the device and keeps for as long as this is used; null: the
  // null stream.
  static Stream borrow(const Device& device, CUstream handle);

  // Another owner of the same stream.
  Stream share() const { return Stream(stream_); }

  CUstream handle() const { return stream_->get(); }
  const std::shared_ptr<const PrimaryContext>& context() const { return stream_->context(); }
  void make_current() const { context()->make_current(); }

  void synchronize() const;  // without a deadline; DeviceError also for what earlier work did
  bool idle() const;

  void record(const Event& event) const;
  void wait(const Event& event) const;  // any device's

  // Host memory that is not page-locked is staged by the driver, and the call may then block.
  void upload(CUdeviceptr to, const void* from, std::size_t bytes) const;
  void download(void* to, CUdeviceptr from, std::size_t bytes) const;
  // Within this device, or between devices with peer access: one copy engine, no SM.
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) const;
  void copy_rows(const RowsCopy& copy) const;
  void copy_peer(CUdeviceptr to, const Device& to_device, CUdeviceptr from,
                 const Device& from_device, std::size_t bytes) const;
  void fill_bytes(CUdeviceptr to, std::uint8_t value, std::size_t bytes) const;
  void fill_words(CUdeviceptr to, std::uint32_t value, std::size_t words) const;

  // Words of 64 bits, naturally aligned. A wait has no deadline of its own. A write comes after all
  // earlier work of the stream, at system scope.
  void wait_value(CUdeviceptr word, std::uint64_t value, WaitUntil until) const;
  void write_value(CUdeviceptr word, std::uint64_t value) const;

  // What this thread enqueues here, and on streams that wait for events recorded here, becomes the
  // graph. DeviceError from end_capture where something that cannot be captured came between.
  void begin_capture() const;
  GraphExec end_capture() const;
  // Ends a capture without a graph, so that the stream can be used again.
  void drop_capture() const noexcept;
  // Which capture is under way here, 0: none. Streams that it has spread to have the same.
  std::uint64_t capture_id() const;

 private:
  using Handle = Owned<CUstream, &Driver::stream_destroy>;
  explicit Stream(std::shared_ptr<const Handle> stream) : stream_(std::move(stream)) {}

  std::shared_ptr<const Handle> stream_;
};

// A captured graph, ready to be launched any number of times, one at a time.
class GraphExec {
 public:
  void launch(const Stream& stream) const;

 private:
  friend class Stream;
  using Handle = Owned<CUgraphExec, &Driver::graph_exec_destroy>;
  explicit GraphExec(Handle graph) : graph_(std::move(graph)) {}

  Handle graph_;
};

// Makes a graph of what `enqueue()` enqueues. Where it throws, no capture is left under way.
template <typename Enqueue>
GraphExec capture(const Stream& stream, const Enqueue& enqueue) {
  stream.begin_capture();
  try {
    enqueue();
  } catch (...) {
    stream.drop_capture();
    throw;
  }
  return stream.end_capture();
}

}  // namespace stretto::cuda
