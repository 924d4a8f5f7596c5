#include "session_executable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "cpu_session_executable.h"
#include "gpu_session_executable.h"
#include "stretto/base/host_phases.h"
#include "stretto/ir/printer.h"
#include "stretto/ir/quota.h"

namespace stretto::python {
namespace {

// What memory takes that others map: pages, of 2 MiB where GPUs share it.
std::size_t in_pages(std::size_t bytes, MemoryKind place) {
  std::size_t page = place == MemoryKind::kGpu ? std::size_t{2} << 20 : std::size_t{4} << 10;
  return (bytes + page - 1) / page * page;
}

void mix(std::uint64_t* content, std::uint64_t word) {
  *content = (*content ^ word) * 0x9e3779b97f4a7c15u;
}

std::string scalar_text(const Var& var, std::int64_t value) {
  if (var.is_float) return fmt::format("{}={}", var.name, float_of_scalar(value));
  return fmt::format("{}={}", var.name, value);
}

}  // namespace

std::shared_ptr<SessionExecutable> SessionExecutable::make(std::shared_ptr<Session> session,
                                                           int rank, Compiled& compiled,
                                                           const std::vector<bool>& staged,
                                                           MemoryKind place, bool records,
                                                           const std::string& said) {
  if (place == MemoryKind::kGpu) {
    return std::make_shared<GpuSessionExecutable>(std::move(session), rank, compiled, staged,
                                                  records, said);
  }
  return std::make_shared<CpuSessionExecutable>(std::move(session), rank, compiled.proved(), staged,
                                                said);
}

SessionExecutable::SessionExecutable(std::shared_ptr<Session> session, int rank,
                                     const Proved& compiled, const std::vector<bool>& staged,
                                     MemoryKind place, const std::string& said)
    : session_(std::move(session)),
      rank_(rank),
      schedule_(compiled.lowered().shared()),
      place_(place) {
  const Program& p = *schedule_;
  if (compiled.bounds_only()) bounds_ = extent_bounds(p);
  if (staged.size() > p.tensors.size()) throw UserError(p.name + ": more tensors than it has");
  std::vector<bool> by_address;
  for (std::size_t i = 0; i < p.tensors.size(); ++i) {
    const Tensor& t = p.tensors[i];
    std::size_t bytes = in_pages(storage_bytes(p, static_cast<int>(i)), place);
    if (t.kind == TensorKind::kBuffer) {
      bytes_ += bytes;
      continue;
    }
    std::size_t arg = arguments_.size();
    Passing passing = t.space != Space::kSymmetric ? Passing::kOwn
                      : staged[arg]                ? Passing::kStaged
                                                   : Passing::kSymmetric;
    arguments_.push_back({i, passing});
    by_address.push_back(passing == Passing::kSymmetric);
    places_.push_back({});
    if (passing != Passing::kStaged) continue;
    bytes_ += bytes;
    staging_.push_back({arg, t.kind != TensorKind::kOutput, t.kind != TensorKind::kInput, 0, {}});
  }
  bytes_ += in_pages(1, place);  // signals
  content_ = std::hash<std::string>()(print(p) + fmt::format("{}", by_address));
  size_for(extent_bounds(p), said);
}

// Of every tensor the first dimension follows the extents; the others are at their bounds, as they
// lie in memory.
void SessionExecutable::size_for(std::span<const std::int64_t> extents, const std::string& said) {
  const Program& p = *schedule_;
  Call call{
      .extents = {extents.begin(), extents.end()}, .said = said, .name = {}, .content = content_};
  if (!said.empty()) mix(&call.content, std::hash<std::string>()(said));
  std::vector<std::int64_t> vars = initial_vars(p, rank_, call.extents);
  std::vector<std::string> texts;
  std::string places;
  std::vector<std::size_t> bytes;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& arg = arguments_[i];
    const Tensor& t = p.tensors[arg.tensor];
    std::vector<std::int64_t> shape = bound_shape(p, static_cast<int>(arg.tensor));
    if (!shape.empty()) shape[0] = eval(t.shape[0], vars);
    bytes.push_back(static_cast<std::size_t>(num_elements(shape)) * size_bytes(t.dtype));
    if (said.empty()) {
      texts.push_back(fmt::format("{} {} {}", t.name, stretto::name(t.dtype), shape));
    }
    if (arg.passing != Passing::kSymmetric) continue;
    const SymmetricPlace& place = places_[i];
    std::string at = fmt::format("at byte {} of array {}", place.offset_bytes, place.number);
    places += fmt::format(", in symmetric memory {}", at);
    if (said.empty()) texts.back() = fmt::format("symmetric {} {}", texts.back(), at);
    mix(&call.content, place.number);
    mix(&call.content, place.offset_bytes);
  }
  for (Staging& s : staging_) s.bytes = bytes[s.arg];
  for (std::int64_t extent : extents) mix(&call.content, static_cast<std::uint64_t>(extent));
  for (std::size_t v = 1; v < p.vars.size() && said.empty(); ++v) {
    if (p.vars[v].kind == VarKind::kScalar) texts.push_back(scalar_text(p.vars[v], vars[v]));
  }
  std::string called =
      said.empty() ? fmt::format("{}({})", p.name, fmt::join(texts, ", ")) : said + places;
  call.name = fmt::format("{}{}, program {:08x}", called,
                          place_ == MemoryKind::kGpu ? " on GPUs" : "", content_ >> 32);
  call_ = std::move(call);
}

void SessionExecutable::make_staging() {
  for (Staging& s : staging_) {
    const Tensor& t = schedule_->tensors[arguments_[s.arg].tensor];
    s.memory = std::make_unique<SymmetricMemory>(
        session_, rank_, fmt::format("{}.{} (staging)", schedule_->name, t.name), place_,
        storage_bytes(*schedule_, static_cast<int>(arguments_[s.arg].tensor)));
  }
}

Launch& SessionExecutable::launch_on(std::span<std::byte* const> args) {
  HostPhase phase("launch: prepared one found");
  args_.tensors.resize(schedule_->tensors.size());
  for (std::size_t i = 0; i < args.size(); ++i) {
    TensorArg& to = args_.tensors[arguments_[i].tensor];
    if (arguments_[i].passing == Passing::kOwn) to.data = args[i];
    if (arguments_[i].passing != Passing::kSymmetric) continue;
    to.symmetric = &places_[i].memory->buffer();
    to.offset_bytes = places_[i].offset_bytes;
  }
  for (const Staging& s : staging_) {
    args_.tensors[arguments_[s.arg].tensor].symmetric = &s.memory->buffer();
  }
  launch_ = loaded_->prepare(args_);
  return *launch_;
}

std::size_t SessionExecutable::num_enqueued() const {
  std::size_t count = 1;
  for (const Staging& s : staging_) count += s.copied_in + s.copied_out;
  return count;
}

void SessionExecutable::announce(std::span<std::byte* const>, std::span<const std::int64_t>,
                                 const std::string&) {
  throw InternalError("CPU ranks run a launch at once");
}
void SessionExecutable::enqueue(std::span<std::byte* const>, std::span<const std::int64_t>,
                                const std::string&, const cuda::Stream&) {
  throw InternalError("CPU ranks run a launch at once");
}

void SessionExecutable::unload() {
  launch_.reset();
  loaded_.reset();
}

const SessionExecutable::Call& SessionExecutable::call_with(std::span<std::byte* const> args,
                                                            std::span<const std::int64_t> extents,
                                                            const std::string& said) {
  HostPhase phase("launch: arguments checked");
  if (args.size() != arguments_.size()) {
    throw UserError(fmt::format("{}: {} tensors given, it has {}", schedule_->name, args.size(),
                                arguments_.size()));
  }
  if (!bounds_.empty() && !std::ranges::equal(extents, bounds_)) {
    throw UserError(
        fmt::format("{}: sizes {} given, proved for {} alone", schedule_->name, extents, bounds_));
  }
  bool moved = false;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (arguments_[i].passing != Passing::kSymmetric) continue;
    SymmetricPlace last = std::exchange(places_[i], place_of(i, args[i]));
    moved |= last.number != places_[i].number || last.offset_bytes != places_[i].offset_bytes;
  }
  // A rank by itself, whose calls nobody compares, need not know.
  bool matters = session_->size() > 1 || !staging_.empty();
  bool same = !moved && said == call_.said && std::ranges::equal(extents, call_.extents);
  if (matters && !same) size_for(extents, said);
  return call_;
}

SessionExecutable::SymmetricPlace SessionExecutable::place_of(std::size_t arg,
                                                              const std::byte* address) const {
  const SymmetricMemory* memory = session_->find_memory(rank_, address);
  if (memory != nullptr && memory->is_on_gpu() == (place_ == MemoryKind::kGpu)) {
    return {memory, memory->number(), static_cast<std::size_t>(address - memory->data())};
  }
  throw UserError(fmt::format("{}: tensor '{}' is not in symmetric memory", schedule_->name,
                              schedule_->tensors[arguments_[arg].tensor].name));
}

}  // namespace stretto::python
