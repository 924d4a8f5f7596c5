#include "gpu_executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/base/slow_notice.h"

namespace stretto::python {

// The kernel first: compiling takes seconds, more on one rank than on another.
GpuExecutable::GpuExecutable(std::shared_ptr<Session> session, int rank, const Proved& compiled,
                             const std::vector<bool>& staged, bool records, const std::string& said)
    : Executable(std::move(session), rank, compiled, staged, Place::kGpu, said),
      gpu_(this->session().gpu()),
      records_(records) {
  GpuCode code = [&] {
    SlowNotice notice(fmt::format("compiling the kernel of '{}', kept for later runs",
                                  compiled.program().name));
    return build_gpu_code(compiled.lowered(), {.record = records});
  }();
  GpuSide& gpu = gpu_;
  cuda::ContextScope scope(*gpu.device().context());
  const Call& call = call_at_bounds();
  gpu.announce(call.name, call.content, GpuSide::Then::kAgree);
  gpu.agree(call.name, call.content);
  make_staging();
  instance_.emplace(gpu.world(), compiled, std::move(code));
  const Program& p = program();
  auto size = static_cast<std::size_t>(gpu.world().size());
  args_.tensors.resize(p.tensors.size());
  for (const Argument& arg : arguments_) args_.tensors[arg.tensor].resize(size);
  for (const Staging& s : staging_) {
    std::vector<CUdeviceptr>& on = args_.tensors[arguments_[s.arg].tensor];
    for (std::size_t r = 0; r < size; ++r) on[r] = s.memory->on_gpu_of(static_cast<int>(r));
  }
  if (records_) instance_->set_recording(true);
  this->session().add_executable(*this);
}

GpuExecutable::~GpuExecutable() {
  session().remove_executable(*this);
  close();
}

void GpuExecutable::record(bool on, Recorder& recorder) {
  if (!records_) return;
  if (!on) instance_->collect(recorder);
  instance_->set_recording(on);
}

void GpuExecutable::close() noexcept {
  if (!instance_) return;
  try {
    gpu_.synchronize();
  } catch (const Error&) {  // has been told elsewhere
  }
  instance_.reset();
}

void GpuExecutable::launch(std::span<std::byte* const> args, std::span<const std::int64_t> extents,
                           const std::string& said, std::uintptr_t stream) {
  GpuSide& gpu = session().gpu();  // refuses a finalized session
  if (gpu.world().aborted()) gpu.world().throw_fault();
  const Call& call = call_with(args, extents, said);
  for (std::size_t i = 0; i < args.size(); ++i) {
    auto address = reinterpret_cast<CUdeviceptr>(args[i]);
    if (address % 16 != 0) {
      throw UserError(fmt::format("{}: tensor '{}' is not aligned to 16 bytes", program().name,
                                  program().tensors[arguments_[i].tensor].name));
    }
    std::vector<CUdeviceptr>& on = args_.tensors[arguments_[i].tensor];
    if (arguments_[i].passing == Passing::kOwn) std::fill(on.begin(), on.end(), address);
    if (arguments_[i].passing != Passing::kSymmetric) continue;
    for (std::size_t r = 0; r < on.size(); ++r) {
      on[r] = places_[i].memory->on_gpu_of(static_cast<int>(r)) + places_[i].offset_bytes;
    }
  }
  args_.extents.assign(extents.begin(), extents.end());
  const cuda::Stream& on = gpu.stream(stream);
  cuda::ContextScope scope(*gpu.device().context());
  gpu.announce(call.name, call.content, GpuSide::Then::kLaunch);
  count_use();
  is_captured_ = is_captured_ || on.capture_id() != 0;
  for (const Staging& s : staging_) {
    if (!s.copied_in || s.bytes == 0) continue;
    on.copy(reinterpret_cast<CUdeviceptr>(s.memory->data()),
            reinterpret_cast<CUdeviceptr>(args[s.arg]), s.bytes);
  }
  instance_->launch(args_, rank(), on);
  for (const Staging& s : staging_) {
    if (!s.copied_out || s.bytes == 0) continue;
    on.copy(reinterpret_cast<CUdeviceptr>(args[s.arg]),
            reinterpret_cast<CUdeviceptr>(s.memory->data()), s.bytes);
  }
}

}  // namespace stretto::python
