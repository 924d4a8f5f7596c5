// Programs that run on the ranks' GPUs, on the streams of their callers.
#pragma once

#include "session_executable.h"

namespace stretto::python {

class GpuSessionExecutable final : public SessionExecutable {
 public:
  // One that records does so from the start.
  GpuSessionExecutable(std::shared_ptr<Session> session, int rank, Compiled& compiled,
                       const std::vector<bool>& staged, bool records, const std::string& said);
  ~GpuSessionExecutable() override;

  // May be captured into a graph.
  void launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
              const std::string& said, std::uintptr_t stream) override;
  void announce(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                const std::string& said) override;
  void enqueue(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
               const std::string& said, const cuda::Stream& on) override;
  bool is_captured() const override { return is_captured_; }
  void mark_captured() override { is_captured_ = true; }
  // After the GPU side has recovered. Collective.
  void recover() { loaded_->recover(); }
  // With the GPU idle: begins to record, or moves what was recorded to `recorder` and ends. Nothing
  // happens where the kernel does not record.
  void record(bool on, Recorder& recorder);
  // Before the GPU side goes; launches are refused by then.
  void close() noexcept;

 private:
  // Its launch, once the ranks' words have been compared.
  Launch& announced(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                    const std::string& said);
  void enqueue(Launch& launch, std::span<std::byte* const> args,
               std::span<const std::int64_t> extents, const cuda::Stream& on);

  GpuSide& gpu_;
  bool is_captured_ = false;
};

}  // namespace stretto::python
