#include "stretto/runtime/cuda/stream.h"

namespace stretto::cuda {
namespace {

CUevent create_event(const Device& device, Event::Timing timing) {
  ContextScope scope(*device.context());
  CUevent event = nullptr;
  unsigned flags = timing == Event::Timing::kOn ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  check(driver().event_create(&event, flags), "cuEventCreate");
  return event;
}

CUstream create_stream(const Device& device, int priority) {
  ContextScope scope(*device.context());
  CUstream stream = nullptr;
  check(driver().stream_create(&stream, CU_STREAM_NON_BLOCKING, priority),
        "cuStreamCreateWithPriority");
  return stream;
}

bool passed(CUresult result, const char* what) {
  if (result == CUDA_ERROR_NOT_READY) return false;
  check(result, what);
  return true;
}

}  // namespace

Event::Event(const Device& device, Timing timing)
    : event_(device.context(), create_event(device, timing)) {}

bool Event::ready() const {
  return passed(driver().event_query(handle()), "work before an event (cuEventQuery)");
}

void Event::synchronize() const {
  check(driver().event_synchronize(handle()), "work before an event (cuEventSynchronize)");
}

double elapsed_ms(const Event& from, const Event& to) {
  float ms = 0;
  check(driver().event_elapsed_time(&ms, from.handle(), to.handle()), "cuEventElapsedTime");
  return ms;
}

Stream::Stream(const Device& device, int priority)
    : stream_(std::make_shared<const Handle>(device.context(), create_stream(device, priority))) {}

Stream Stream::borrow(const Device& device, CUstream handle) {
  auto leave_alone = [](Handle* borrowed) {
    borrowed->release();
    delete borrowed;
  };
  return Stream(std::shared_ptr<Handle>(new Handle(device.context(), handle), leave_alone));
}

void Stream::synchronize() const {
  make_current();
  check(driver().stream_synchronize(handle()), "work of a stream (cuStreamSynchronize)");
}

bool Stream::idle() const {
  make_current();
  return passed(driver().stream_query(handle()), "work of a stream (cuStreamQuery)");
}

void Stream::record(const Event& event) const {
  make_current();
  check(driver().event_record(event.handle(), handle()), "cuEventRecord");
}

void Stream::wait(const Event& event) const {
  make_current();
  check(driver().stream_wait_event(handle(), event.handle(), 0), "cuStreamWaitEvent");
}

void Stream::upload(CUdeviceptr to, const void* from, std::size_t bytes) const {
  make_current();
  check(driver().memcpy_htod_async(to, from, bytes, handle()), "cuMemcpyHtoDAsync");
}

void Stream::download(void* to, CUdeviceptr from, std::size_t bytes) const {
  make_current();
  check(driver().memcpy_dtoh_async(to, from, bytes, handle()), "cuMemcpyDtoHAsync");
}

void Stream::copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) const {
  make_current();
  check(driver().memcpy_dtod_async(to, from, bytes, handle()), "cuMemcpyDtoDAsync");
}

void Stream::copy_rows(const RowsCopy& copy) const {
  make_current();
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  box.srcDevice = copy.from;
  box.srcPitch = copy.from_pitch;
  box.dstDevice = copy.to;
  box.dstPitch = copy.to_pitch;
  box.WidthInBytes = copy.row_bytes;
  box.Height = copy.rows;
  check(driver().memcpy_2d_async(&box, handle()), "cuMemcpy2DAsync");
}

void Stream::copy_peer(CUdeviceptr to, const Device& to_device, CUdeviceptr from,
                       const Device& from_device, std::size_t bytes) const {
  make_current();
  check(driver().memcpy_peer_async(to, to_device.context()->handle(), from,
                                   from_device.context()->handle(), bytes, handle()),
        "cuMemcpyPeerAsync");
}

void Stream::fill_bytes(CUdeviceptr to, std::uint8_t value, std::size_t bytes) const {
  make_current();
  check(driver().memset_d8_async(to, value, bytes, handle()), "cuMemsetD8Async");
}

void Stream::fill_words(CUdeviceptr to, std::uint32_t value, std::size_t words) const {
  make_current();
  check(driver().memset_d32_async(to, value, words, handle()), "cuMemsetD32Async");
}

void Stream::wait_value(CUdeviceptr word, std::uint64_t value, WaitUntil until) const {
  make_current();
  unsigned flags = until == WaitUntil::kEqual ? CU_STREAM_WAIT_VALUE_EQ : CU_STREAM_WAIT_VALUE_GEQ;
  check(driver().stream_wait_value64(handle(), word, value, flags), "cuStreamWaitValue64");
}

void Stream::write_value(CUdeviceptr word, std::uint64_t value) const {
  make_current();
  check(driver().stream_write_value64(handle(), word, value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue64");
}

void Stream::begin_capture() const {
  make_current();
  // Relaxed: one thread captures the streams of several ranks, and making the graph of the first
  // must not disturb the others.
  check(driver().stream_begin_capture(handle(), CU_STREAM_CAPTURE_MODE_RELAXED),
        "cuStreamBeginCapture");
}

GraphExec Stream::end_capture() const {
  make_current();
  CUgraph graph = nullptr;
  check(driver().stream_end_capture(handle(), &graph), "cuStreamEndCapture");
  Owned<CUgraph, &Driver::graph_destroy> captured(context(), graph);
  CUgraphExec executable = nullptr;
  check(driver().graph_instantiate(&executable, graph, 0), "cuGraphInstantiate");
  GraphExec::Handle graph_exec(context(), executable);
  // Now, and not at the first launch, which other ranks' launches may have to follow at once.
  check(driver().graph_upload(executable, handle()), "cuGraphUpload");
  return GraphExec(std::move(graph_exec));
}

void Stream::drop_capture() const noexcept {
  CUgraph graph = nullptr;
  driver().stream_end_capture(handle(), &graph);  // null after a capture that went wrong
  if (graph != nullptr) driver().graph_destroy(graph);
}

std::uint64_t Stream::capture_id() const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  std::uint64_t id = 0;
  check(
      driver().stream_get_capture_info(handle(), &status, &id, nullptr, nullptr, nullptr, nullptr),
      "cuStreamGetCaptureInfo");
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? id : 0;
}

void GraphExec::launch(const Stream& stream) const {
  stream.make_current();
  check(driver().graph_launch(graph_.get(), stream.handle()), "cuGraphLaunch");
}

}  // namespace stretto::cuda
