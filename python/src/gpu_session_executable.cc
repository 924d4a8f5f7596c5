#include "gpu_session_executable.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "stretto/base/host_phases.h"
#include "stretto/base/slow_notice.h"

namespace stretto::python {

// The kernel first: compiling takes seconds, more on one rank than on another.
GpuSessionExecutable::GpuSessionExecutable(std::shared_ptr<Session> session, int rank,
                                           Compiled& compiled, const std::vector<bool>& staged,
                                           bool records, const std::string& said)
    : SessionExecutable(std::move(session), rank, compiled.proved(), staged, MemoryKind::kGpu,
                        said),
      gpu_(this->session().gpu()) {
  GpuCode code = [&] {
    std::optional<GpuCode> made = records ? std::nullopt : compiled.take_code();
    if (made) return *std::move(made);
    const Proved& proved = compiled.proved();
    SlowNotice notice(
        fmt::format("compiling the kernel of '{}', kept for later runs", proved.program().name));
    return generate(proved.lowered(), {.target = {.sms = proved.scope().sms}, .record = records});
  }();
  GpuSide& gpu = gpu_;
  cuda::ContextScope scope(*gpu.device().context());
  const Call& call = call_at_bounds();
  gpu.announce(call.name, call.content, GpuSide::Then::kAgree);
  gpu.agree(call.name, call.content);
  make_staging();
  loaded_ = load(compiled.proved(), gpu.world(), std::move(code));
  loaded_->replay_copies(true);
  loaded_->set_recording(true);
  this->session().add_executable(*this);
}

GpuSessionExecutable::~GpuSessionExecutable() {
  session().remove_executable(*this);
  close();
}

void GpuSessionExecutable::record(bool on, Recorder& recorder) {
  if (!on) loaded_->collect(recorder);
  loaded_->set_recording(on);
}

void GpuSessionExecutable::close() noexcept {
  if (!loaded_) return;
  try {
    gpu_.synchronize();
  } catch (const Error&) {  // has been told elsewhere
  }
  unload();
}

void GpuSessionExecutable::launch(std::span<std::byte* const> args,
                                  std::span<const std::int64_t> extents, const std::string& said,
                                  std::uintptr_t stream) {
  HostPhase phase("launch: other");
  Launch& launch = announced(args, extents, said);
  const cuda::Stream& on = gpu_.stream(stream);
  cuda::ContextScope scope(*gpu_.device().context());
  is_captured_ = is_captured_ || on.capture_id() != 0;
  enqueue(launch, args, extents, on);
}

void GpuSessionExecutable::announce(std::span<std::byte* const> args,
                                    std::span<const std::int64_t> extents,
                                    const std::string& said) {
  HostPhase phase("launch: other");
  announced(args, extents, said);
}

void GpuSessionExecutable::enqueue(std::span<std::byte* const> args,
                                   std::span<const std::int64_t> extents, const std::string& said,
                                   const cuda::Stream& on) {
  call_with(args, extents, said);
  enqueue(launch_on(args), args, extents, on);
}

Launch& GpuSessionExecutable::announced(std::span<std::byte* const> args,
                                        std::span<const std::int64_t> extents,
                                        const std::string& said) {
  GpuSide& gpu = session().gpu();  // refuses a finalized session
  if (gpu.world().aborted()) gpu.world().throw_fault();
  const Call& call = call_with(args, extents, said);
  Launch& launch = launch_on(args);
  HostPhase announcing("launch: words of the ranks compared");
  gpu.announce(call.name, call.content, GpuSide::Then::kLaunch);
  count_use();
  return launch;
}

void GpuSessionExecutable::enqueue(Launch& launch, std::span<std::byte* const> args,
                                   std::span<const std::int64_t> extents, const cuda::Stream& on) {
  for (const Staging& s : staging_) {
    if (!s.copied_in || s.bytes == 0) continue;
    on.copy(reinterpret_cast<CUdeviceptr>(s.memory->data()),
            reinterpret_cast<CUdeviceptr>(args[s.arg]), s.bytes);
  }
  launch.run(extents, rank(), on);
  for (const Staging& s : staging_) {
    if (!s.copied_out || s.bytes == 0) continue;
    on.copy(reinterpret_cast<CUdeviceptr>(args[s.arg]),
            reinterpret_cast<CUdeviceptr>(s.memory->data()), s.bytes);
  }
}

}  // namespace stretto::python
