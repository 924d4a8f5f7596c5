#include "stretto/gpu/gpu_instance.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/host_phases.h"
#include "stretto/base/recently_used.h"
#include "stretto/gpu/describe_fault.h"
#include "stretto/gpu/device_events.h"
#include "stretto/gpu/engine_queues.h"
#include "stretto/ir/printer.h"
#include "stretto/runtime/cuda/module.h"
#include "stretto/runtime/cuda/nvtx.h"
#include "stretto/runtime/cuda/tensor_map.h"

namespace stretto {
namespace {

cuda::Swizzle swizzle_of(int bytes) {
  switch (bytes) {
    case 128:
      return cuda::Swizzle::k128B;
    case 64:
      return cuda::Swizzle::k64B;
    case 32:
      return cuda::Swizzle::k32B;
    default:
      return cuda::Swizzle::kNone;
  }
}

constexpr std::size_t kNowhereBytes = 16;  // as TMA aligns what it begins at

// The kernel's parameter, written member by member as launch_plan.h lays it out.
class ParamBytes {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + bytes);
  }
  template <typename T>
  void add(const T& value) {
    add(&value, sizeof(T));
  }
  // The struct is aligned to 64 bytes, and so is its size.
  std::vector<std::byte> finish() {
    bytes_.resize((bytes_.size() + 63) / 64 * 64);
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

// Of `symmetric` or `on`; 0 where there is one address, `data`.
std::size_t num_addresses(const TensorArg& arg) {
  return arg.symmetric != nullptr ? arg.symmetric->at.size() : arg.on.size();
}
// UserError for code of another program.
GpuCode of_program(GpuCode code, const Proved& proved) {
  const Program* from = code.program.get();
  const Program& program = proved.program();
  if (from != &program && (from == nullptr || print(*from) != print(program))) {
    throw UserError(fmt::format("{}: the code is {}, not of the program that was proved",
                                program.name, from ? "of another program" : "of no program"));
  }
  return code;
}

// Bytes of symmetric memory from where the tensor begins; what is none may have any.
std::size_t room_of(const TensorArg& arg) {
  if (arg.symmetric == nullptr) return std::numeric_limits<std::size_t>::max();
  return arg.symmetric->bytes - std::min(arg.offset_bytes, arg.symmetric->bytes);
}
std::size_t bytes_of(const Program& program, int tensor, const std::vector<std::int64_t>& vars) {
  const Tensor& t = program.tensors[static_cast<std::size_t>(tensor)];
  std::vector<std::int64_t> shape;
  for (const Expr& extent : t.shape) shape.push_back(eval(extent, vars));
  return bytes_at(t.dtype, shape, bound_shape(program, tensor));
}
CUdeviceptr address_of(const TensorArg& arg, std::size_t rank) {
  if (arg.symmetric != nullptr) {
    return reinterpret_cast<CUdeviceptr>(arg.symmetric->at[rank] + arg.offset_bytes);
  }
  return arg.on.empty() ? reinterpret_cast<CUdeviceptr>(arg.data) : arg.on[rank];
}

// What a launch enqueues with certain extents.
struct Encoded {
  std::vector<std::int64_t> extents;
  int encoding = 0;  // State::encoding
  std::vector<std::byte> params;
  std::shared_ptr<const EngineQueues::Steps> steps;  // where roles run on copy engines
  std::string refused_in_graphs;
  bool was_run = false;
  std::optional<cuda::GraphExec> graph;
};

}  // namespace

class GpuLaunch {
 public:
  int rank;
  std::vector<CUdeviceptr> key;
  std::vector<std::vector<CUdeviceptr>> tensors;  // [tensor][rank]; nowhere for buffers
  std::vector<std::size_t> rooms;  // [tensor] bytes of symmetric memory from there on; else any
  CUdeviceptr scalars;             // 0: by value
  bool starts_early;
  RecentlyUsed<std::unique_ptr<Encoded>, GpuInstance::kMostExtents> encoded;
};

struct GpuInstance::State {
  struct RankState {
    std::unique_ptr<cuda::Kernel> gate, kernel;  // no gate where no role runs on copy engines
    std::unique_ptr<cuda::DeviceMemory> control, quotas;
    // 16 bytes for each TMA view, which has to have an element where its tensor has none: a view
    // that loads reads a zero, and what is stored through one is lost there. Views that do both
    // would read it.
    std::unique_ptr<cuda::DeviceMemory> nowhere;
    RecentlyUsed<std::shared_ptr<GpuLaunch>, kMostPrepared> prepared;
    std::vector<CUdeviceptr> key;  // of the launch that is asked for
    std::optional<cuda::Stream> capturing;
  };

  State(GpuWorld& w, const Proved& p, GpuCode code)
      : world(w),
        proved(p),
        program(p.lowered().shared()),
        quotas(p.quotas()),
        kernel(std::move(code.kernel)),
        image(std::move(code.image)),
        fault_source(w.add_fault_source(program->name, [this](const DeviceFault& f) {
          return describe_fault(*program, kernel.launch, quotas, extents.same(), f);
        })) {
    // Who waits for signals of other ranks needs all blocks at a time (codegen/residency.h); what
    // is neither a signal's site nor a table's is a packet's.
    const std::vector<WaitSite>& sites = kernel.launch.sites;
    waits = world.size() > 1 && (kernel.launch.cooperative || kernel.launch.beside_gate ||
                                 std::any_of(sites.begin(), sites.end(), [](const WaitSite& s) {
                                   return s.signal < 0 && s.table < 0;
                                 }));
  }
  ~State() { world.remove_fault_source(fault_source); }

  CUdeviceptr address(const GpuLaunch& launch, std::size_t tensor, std::size_t rank) const {
    if (!buffers[tensor].on.empty()) return buffers[tensor].on[rank].address();
    return launch.tensors[tensor][rank];
  }

  const RankState& local(int rank) const { return ranks[world.local_index(rank)]; }
  RankState& local(int rank) { return ranks[world.local_index(rank)]; }
  void allocate();
  void check_room(const cuda::Kernel& kernel) const;
  void zero();
  cuda::TensorMap map_of(const TensorMapPlan& plan, CUdeviceptr address, CUdeviceptr nowhere,
                         const std::vector<std::int64_t>& vars) const;
  std::vector<std::byte> params(const GpuLaunch& launch, const std::vector<std::int64_t>& with);
  void key_of(const Args& args, std::vector<CUdeviceptr>& key) const;
  void check_args(const Args& args) const;
  void check_place(const std::string& what, const TensorArg& arg, bool symmetric) const;
  // What has elements at these extents has an address and room for them.
  void check_placed(const GpuLaunch& launch, std::span<const std::int64_t> with) const;
  void check_scalars(const std::vector<std::int64_t>& with) const;

  Encoded& encoded(GpuLaunch& launch, std::span<const std::int64_t> extents);

  // A rank's part of a launch.
  struct Part {
    GpuLaunch* launch = nullptr;
    const cuda::Stream* stream = nullptr;
    Encoded* encoded = nullptr;
    std::unique_lock<std::mutex> admitted;  // until all of the launch is enqueued
    int rank() const { return launch->rank; }
  };
  void run(std::span<Part> parts, std::span<const std::int64_t> extents);
  bool as_graphs(std::span<Part> parts) const;
  SmDemand demand() const {
    const LaunchPlan& plan = kernel.launch;
    return {.program = program->name, .blocks = plan.grid, .cluster = plan.cluster};
  }
  void make_graph(const Part& part);
  void enqueue(std::span<const Part> parts) const;
  void launch_kernel(const Part& part) const;

  GpuWorld& world;
  Proved proved;
  std::shared_ptr<const Program> program;
  const Quotas& quotas;
  GeneratedKernel kernel;
  cuda::KernelImage image;
  int fault_source;
  bool waits = false;            // for other ranks
  std::vector<RankState> ranks;  // [world.local_ranks()]
  SymmetricGpuMemory signals;
  std::vector<SymmetricGpuMemory> buffers;  // by tensor; empty where it is not a buffer
  std::unique_ptr<EngineQueues> engines;    // where roles run on copy engines
  std::unique_ptr<DeviceEvents> events;     // where the kernel records
  LaunchedExtents extents;
  std::atomic<std::int64_t> num_encoded = 0;
  int encoding = 0;  // what is encoded holds for one alone
  bool recording = false, replays_copies = false;
};

// All blocks of a kernel that waits are on SMs at the same time.
void GpuInstance::State::check_room(const cuda::Kernel& loaded) const {
  if (!waits) return;
  int sms = world.sms_for_waiting(),
      of_gpu = world.device(world.local_ranks().front()).properties().num_sms;
  // What is left to others is whole SMs.
  int per_sm =
      sms < of_gpu ? 1 : loaded.max_blocks_per_sm(kernel.launch.block, kernel.launch.shared_bytes);
  if (kernel.launch.grid <= sms * per_sm) return;
  throw UserError(fmt::format("{}: {} blocks wait for other ranks, and {} of {} SMs are to be had",
                              program->name, kernel.launch.grid, sms, of_gpu));
}

void GpuInstance::State::allocate() {
  const Program& p = *program;
  std::size_t counters =
      static_cast<std::size_t>(std::max<std::int64_t>(kernel.launch.num_counters, 1));
  signals = world.allocate(counters * 8);
  buffers.resize(p.tensors.size());
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    if (p.tensors[t].kind != TensorKind::kBuffer) continue;
    buffers[t] = world.allocate(std::max<std::size_t>(storage_bytes(p, static_cast<int>(t)), 16));
    // Kernels find a packet's place by its address (device/sm90/packet.h). Drivers align to 512.
    for (CUdeviceptr at : buffers[t].addresses()) {
      if (!p.tensors[t].packet || at % 512 == 0) continue;
      throw DeviceError(fmt::format("{}: memory for '{}' is not aligned to 512 bytes", p.name,
                                    p.tensors[t].name));
    }
  }
  for (int r : world.local_ranks()) {
    RankState& rank = ranks.emplace_back();
    const cuda::Device& device = world.device(r);
    cuda::Module module(device, image.cubin, p.name);
    rank.kernel = std::make_unique<cuda::Kernel>(module, kernel.launch.kernel);
    rank.kernel->set_max_dynamic_shared(kernel.launch.shared_bytes);
    check_room(*rank.kernel);
    if (!kernel.launch.gate.empty()) {
      rank.gate = std::make_unique<cuda::Kernel>(module, kernel.launch.gate);
      rank.gate->set_max_dynamic_shared(kernel.launch.gate_shared_bytes);
    }
    rank.control = std::make_unique<cuda::DeviceMemory>(
        device, static_cast<std::size_t>(kernel.launch.num_control_words) * 8);
    rank.quotas = std::make_unique<cuda::DeviceMemory>(device, counters * 8);
    std::size_t views = std::max<std::size_t>(kernel.launch.maps.size(), 1);
    rank.nowhere = std::make_unique<cuda::DeviceMemory>(device, views * kNowhereBytes);
    std::vector<std::uint64_t> words;
    for (std::size_t s = 0; s < p.signals.size(); ++s) {
      for (std::int64_t q : quotas[s][static_cast<std::size_t>(r)]) {
        words.push_back(static_cast<std::uint64_t>(q));
      }
    }
    if (!words.empty())
      world.stream(r).upload(rank.quotas->address(), words.data(), 8 * words.size());
  }
  if (!kernel.launch.gate.empty()) {
    engines = std::make_unique<EngineQueues>(world, p, kernel.launch);
  }
  if (!kernel.launch.event_lanes.empty()) {
    events = std::make_unique<DeviceEvents>(world, kernel.launch);
  }
  zero();
}

void GpuInstance::State::zero() {
  const Program& p = *program;
  if (engines) engines->zero();
  for (int r : world.local_ranks()) {
    auto at = static_cast<std::size_t>(r);
    const cuda::Stream& stream = world.stream(r);
    const cuda::DeviceMemory& control = *local(r).control;
    stream.fill_bytes(signals.on[at].address(), 0, signals.on[at].bytes());
    stream.fill_bytes(control.address(), 0, control.bytes());
    stream.fill_bytes(local(r).nowhere->address(), 0, local(r).nowhere->bytes());
    for (std::size_t t = 0; t < buffers.size(); ++t) {
      if (buffers[t].on.empty()) continue;
      // Poison, so that a read of what nobody wrote shows; packets carry no tag.
      std::uint8_t fill = p.tensors[t].packet ? 0 : 0xff;
      stream.fill_bytes(buffers[t].on[at].address(), fill, buffers[t].on[at].bytes());
    }
  }
  world.meet();
}

cuda::TensorMap GpuInstance::State::map_of(const TensorMapPlan& plan, CUdeviceptr address,
                                           CUdeviceptr nowhere,
                                           const std::vector<std::int64_t>& vars) const {
  const Tensor& t = program->tensors[static_cast<std::size_t>(plan.tensor)];
  std::vector<std::int64_t> bounds = bound_shape(*program, plan.tensor);
  std::vector<std::int64_t> strides(bounds.size(), 1);
  for (std::size_t d = bounds.size(); d-- > 1;) strides[d - 1] = strides[d] * bounds[d];
  auto extent = [&](int dim) {
    return dim < 0 ? 1 : eval(t.shape[static_cast<std::size_t>(dim)], vars);
  };
  std::int64_t slot = num_elements(bounds);  // the distance of slots, where there is nothing else
  std::int64_t unit = static_cast<std::int64_t>(16 / size_bytes(t.dtype));
  auto stride = [&](int dim) {  // of a dimension of one element: anything TMA takes
    return dim < 0 ? (slot + unit - 1) / unit * unit : strides[static_cast<std::size_t>(dim)];
  };
  int cols = static_cast<int>(bounds.size()) - 1;
  const std::vector<std::int64_t> box = {1, plan.box_rows, plan.box_cols};
  if (address == nowhere || extent(plan.outer_dim) <= 0 || extent(plan.row_dim) <= 0 ||
      extent(cols) <= 0) {
    return cuda::encode_tensor_map({.dtype = t.dtype,
                                    .address = nowhere,
                                    .shape = {1, 1, 1},
                                    .strides = {unit, unit, 1},
                                    .box = box,
                                    .swizzle = swizzle_of(plan.swizzle_bytes)});
  }
  return cuda::encode_tensor_map(
      {.dtype = t.dtype,
       .address = address,
       .shape = {extent(plan.outer_dim) * t.num_slots, extent(plan.row_dim), extent(cols)},
       .strides = {stride(plan.outer_dim), stride(plan.row_dim), 1},
       .box = box,
       .swizzle = swizzle_of(plan.swizzle_bytes)});
}

std::vector<std::byte> GpuInstance::State::params(const GpuLaunch& launch,
                                                  const std::vector<std::int64_t>& with) {
  const Program& p = *program;
  const int rank = launch.rank;
  auto own = static_cast<std::size_t>(rank);
  std::vector<std::int64_t> vars = initial_vars(p, rank, with);
  ParamBytes out;
  CUdeviceptr nowhere = local(rank).nowhere->address();
  for (const TensorMapPlan& plan : kernel.launch.maps) {
    auto rank_of_map = plan.rank < 0 ? own : static_cast<std::size_t>(plan.rank);
    const bool is_there = is_given(p, plan.tensor, static_cast<int>(rank_of_map));
    const auto tensor = static_cast<std::size_t>(plan.tensor);
    out.add(map_of(plan, is_there ? address(launch, tensor, rank_of_map) : nowhere, nowhere, vars));
    nowhere += kNowhereBytes;
    ++num_encoded;
  }
  if (kernel.launch.maps.empty()) out.add(cuda::TensorMap{});
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    for (std::size_t r = 0; r < signals.on.size(); ++r) out.add(address(launch, t, r));
  }
  if (p.tensors.empty()) out.add(CUdeviceptr{0});
  for (const cuda::DeviceMemory& s : signals.on) out.add(s.address());
  out.add(local(rank).quotas->address());
  out.add(local(rank).control->address());
  out.add(world.abort_word());
  out.add(world.fault_record());
  out.add(static_cast<std::uint64_t>(world.timeout().count()));
  out.add(std::int64_t{rank} + std::int64_t{GpuWorld::kFaultSources} * fault_source);
  out.add(local(rank).control->address() + 8 * CUdeviceptr{kControlAborted});
  for (std::int64_t v : with) out.add(v);
  if (with.empty()) out.add(std::int64_t{0});
  out.add(launch.scalars);
  out.add(std::int64_t{rank});
  if (engines) {
    out.add(engines->marks(rank));
    out.add(engines->words(rank));
    out.add(engines->words_for_peers(rank));
    out.add(engines->bells(rank));
    out.add(engines->num_marks(rank));
  }
  if (events) out.add(events->words(rank));
  return out.finish();
}

void GpuInstance::State::check_place(const std::string& what, const TensorArg& arg,
                                     bool symmetric) const {
  const std::size_t size = signals.on.size();
  auto fail = [&](const std::string& why) {
    throw UserError(fmt::format("{}: {} {}", program->name, what, why));
  };
  const std::size_t given = num_addresses(arg);
  if (given != 0 || arg.symmetric != nullptr) {
    if (given != size) fail(fmt::format("has {} addresses for {} ranks", given, size));
  } else if (symmetric) {
    fail("is symmetric, pass a SymmetricBuffer");
  } else if (world.local_ranks().size() > 1) {
    fail("needs every rank's address: this process has several GPUs");
  }
  for (std::size_t r = 0; r < size; ++r) {
    if (address_of(arg, r) % 16 != 0) fail("is not aligned to 16 bytes");
  }
}
void GpuInstance::State::check_placed(const GpuLaunch& launch,
                                      std::span<const std::int64_t> with) const {
  const Program& p = *program;
  const std::vector<std::int64_t> vars = initial_vars(p, launch.rank, {with.begin(), with.end()});
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    const Tensor& tensor = p.tensors[t];
    if (tensor.kind == TensorKind::kBuffer || !is_given(p, static_cast<int>(t), launch.rank)) {
      continue;
    }
    const std::size_t bytes = bytes_of(p, static_cast<int>(t), vars);
    if (bytes == 0) continue;
    if (address(launch, t, static_cast<std::size_t>(launch.rank)) == 0) {
      throw UserError(fmt::format("{}: tensor '{}' has no address", p.name, tensor.name));
    }
    if (launch.rooms[t] < bytes) {
      throw UserError(
          fmt::format("{}: tensor '{}' needs {} bytes, its symmetric memory has {} there", p.name,
                      tensor.name, bytes, launch.rooms[t]));
    }
  }
}

void GpuInstance::State::check_args(const Args& args) const {
  const Program& p = *program;
  if (args.tensors.size() != p.tensors.size()) {
    throw UserError(fmt::format("{}: {} tensor arguments given, the program has {} tensors", p.name,
                                args.tensors.size(), p.tensors.size()));
  }
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    const Tensor& tensor = p.tensors[t];
    if (tensor.kind == TensorKind::kBuffer) continue;
    check_place(fmt::format("tensor '{}'", tensor.name), args.tensors[t],
                tensor.space == Space::kSymmetric);
  }
  if (args.scalars != TensorArg{}) check_place("the scalars' memory", args.scalars, false);
}

// What is made of the extents here, on the host, must not depend on scalars that only the device
// knows.
void GpuInstance::State::check_scalars(const std::vector<std::int64_t>& with) const {
  const Program& p = *program;
  std::vector<std::int64_t> low = initial_vars(p, 0, with), high = low;
  for (std::size_t i = 0; i < p.vars.size(); ++i) {
    if (p.vars[i].kind != VarKind::kScalar) continue;
    low[i] = 0;
    high[i] = p.vars[i].bound;
  }
  for (const TensorMapPlan& plan : kernel.launch.maps) {
    const Tensor& t = p.tensors[static_cast<std::size_t>(plan.tensor)];
    for (const Expr& dim : t.shape) {
      if (eval(dim, low) == eval(dim, high)) continue;
      throw UserError(
          fmt::format("{}: the shape of '{}' depends on a scalar, which must be given "
                      "by value",
                      p.name, t.name));
    }
  }
}

GpuInstance::GpuInstance(GpuWorld& world, const Proved& program)
    : GpuInstance(world, program, generate(program.lowered())) {}

GpuInstance::GpuInstance(GpuWorld& world, const Proved& program, GpuCode code)
    : state_(std::make_unique<State>(world, program, of_program(std::move(code), program))) {
  State& s = *state_;
  if (s.program->world_size != world.size()) {
    throw UserError(fmt::format("{}: written for {} ranks, the world has {}", s.program->name,
                                s.program->world_size, world.size()));
  }
  for (int r : world.local_ranks()) {
    const cuda::DeviceProperties& gpu = world.device(r).properties();
    program.require_covers_gpu(gpu.num_sms, fmt::format("GPU {} ({})", gpu.ordinal, gpu.name));
  }
  s.allocate();
}

GpuInstance::~GpuInstance() = default;

void GpuInstance::State::key_of(const Args& args, std::vector<CUdeviceptr>& key) const {
  key.clear();
  auto add = [&](const TensorArg& arg) {
    const std::size_t given = num_addresses(arg);
    for (std::size_t r = 0; r < given; ++r) key.push_back(address_of(arg, r));
    key.push_back(given);
    if (arg.symmetric != nullptr) key.push_back(room_of(arg));
    if (given == 0) key.push_back(reinterpret_cast<CUdeviceptr>(arg.data));
  };
  for (std::size_t t = 0; t < args.tensors.size(); ++t) {
    if (t >= buffers.size() || buffers[t].on.empty()) add(args.tensors[t]);
  }
  add(args.scalars);
  key.push_back(args.starts_early ? 1 : 0);
}

Encoded& GpuInstance::State::encoded(GpuLaunch& launch, std::span<const std::int64_t> with) {
  launch.encoded.erase_if([&](const auto& e) { return e->encoding != encoding; });
  auto* known =
      launch.encoded.find([&](const auto& e) { return std::ranges::equal(e->extents, with); });
  if (known != nullptr) return **known;
  proved.require_covers(with);
  check_placed(launch, with);
  auto made = std::make_unique<Encoded>();
  made->extents.assign(with.begin(), with.end());
  if (launch.scalars != 0) check_scalars(made->extents);
  made->encoding = encoding;
  made->params = params(launch, made->extents);
  if (engines) {
    made->steps = engines->steps(launch.rank, with);
    made->refused_in_graphs = engines->refused_in_graphs(*made->steps, launch.rank);
  }
  return *launch.encoded.keep(std::move(made));
}

void GpuInstance::State::launch_kernel(const Part& part) const {
  const LaunchPlan& plan = kernel.launch;
  cuda::LaunchConfig config{.grid = {static_cast<unsigned>(plan.grid)},
                            .block = {static_cast<unsigned>(plan.block)},
                            .cluster = {static_cast<unsigned>(plan.cluster)},
                            .dynamic_shared_bytes = plan.shared_bytes,
                            .cooperative = plan.cooperative};
  config.programmatic_serialization =
      engines ? plan.beside_gate : part.launch->starts_early && !config.cooperative;
  void* pointers[] = {part.encoded->params.data()};
  local(part.rank()).kernel->launch(*part.stream, config, pointers);
}

// What is refused on one rank is enqueued on none.
void GpuInstance::State::run(std::span<Part> parts, std::span<const std::int64_t> with) {
  HostPhase phase("launch: extents found, enqueued");
  for (Part& p : parts) {
    p.encoded = &encoded(*p.launch, with);
    if (p.encoded->refused_in_graphs.empty() || p.stream->capture_id() == 0) continue;
    throw UserError(p.encoded->refused_in_graphs);
  }
  if (parts.empty()) return;
  cuda::NvtxRange range(program->name.c_str());
  extents.add(parts.front().encoded->extents);
  const bool graphs = as_graphs(parts);
  if (graphs) {
    for (const Part& p : parts) make_graph(p);
  }
  if (waits) {
    HostPhase admitting("launch: admitted beside others");
    for (Part& p : parts) p.admitted = world.admit(fault_source, p.rank(), demand(), *p.stream);
  }
  if (graphs) {
    for (const Part& p : parts) p.encoded->graph->launch(*p.stream);
  } else {
    enqueue(parts);
  }
  for (const Part& p : parts) p.encoded->was_run = true;
}

// What is run once alone is not worth a graph.
bool GpuInstance::State::as_graphs(std::span<Part> parts) const {
  return engines && replays_copies && !recording && std::ranges::all_of(parts, [](const Part& p) {
           return p.encoded->was_run && p.encoded->refused_in_graphs.empty() &&
                  p.stream->capture_id() == 0;
         });
}

void GpuInstance::State::make_graph(const Part& part) {
  if (part.encoded->graph) return;
  std::optional<cuda::Stream>& stream = local(part.rank()).capturing;
  if (!stream) stream.emplace(world.device(part.rank()));
  const Part captured{.launch = part.launch, .stream = &*stream, .encoded = part.encoded};
  part.encoded->graph = cuda::capture(*stream, [&] { enqueue({&captured, 1}); });
}

// Gates first, on all ranks: whatever queues wait for has been enqueued before them
// (engine_queues.h).
void GpuInstance::State::enqueue(std::span<const Part> parts) const {
  const LaunchPlan& plan = kernel.launch;
  if (!engines) {
    for (const Part& p : parts) launch_kernel(p);
    return;
  }
  // Blocks get SMs in an order, and those that follow each other share factors' rows: with one
  // block for each of the main kernel's, of which the last stays, those get theirs as they would
  // without a gate (docs/decisions/0018-kernels-begin-beside-their-gate.md).
  const unsigned blocks = plan.beside_gate ? static_cast<unsigned>(plan.grid) : 1;
  for (const Part& p : parts) {
    engines->begin(p.rank(), *p.stream);
    void* pointers[] = {p.encoded->params.data()};
    local(p.rank()).gate->launch(
        *p.stream,
        {.grid = {blocks}, .block = {128}, .dynamic_shared_bytes = plan.gate_shared_bytes},
        pointers);
  }
  auto counters = [&](int r) { return signals.on[static_cast<std::size_t>(r)].address(); };
  auto fork = [&](EngineQueues::Awaiting which) {
    for (const Part& p : parts) {
      auto tensor = [this, &p](int t, int r) {
        return address(*p.launch, static_cast<std::size_t>(t), static_cast<std::size_t>(r));
      };
      engines->fork(p.rank(), *p.encoded->steps, {tensor, counters}, which);
    }
  };
  fork(EngineQueues::Awaiting::kGate);
  for (const Part& p : parts) launch_kernel(p);
  fork(EngineQueues::Awaiting::kRoles);
  for (const Part& p : parts) engines->join(p.rank(), *p.stream);
}

void GpuInstance::launch(const Args& args, std::span<const std::int64_t> extents) {
  State& s = *state_;
  if (s.world.aborted()) s.world.throw_fault();
  std::array<RankStream, World::kMaxWorldSize> on;
  const std::vector<int>& ranks = s.world.local_ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) on.at(i) = {ranks[i], &s.world.stream(ranks[i])};
  launch(args, extents, std::span(on.data(), ranks.size()));
}

void GpuInstance::launch(const Args& args, std::span<const std::int64_t> extents,
                         std::span<const RankStream> on) {
  std::array<std::shared_ptr<GpuLaunch>, World::kMaxWorldSize> prepared;
  std::array<RankLaunch, World::kMaxWorldSize> launches;
  for (std::size_t i = 0; i < on.size(); ++i) {
    prepared.at(i) = prepare(args, on[i].rank);
    launches.at(i) = {prepared[i].get(), on[i].stream};
  }
  run({launches.data(), on.size()}, extents);
}

void GpuInstance::run(std::span<const RankLaunch> launches, std::span<const std::int64_t> extents) {
  std::array<State::Part, World::kMaxWorldSize> parts;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    parts.at(i).launch = launches[i].launch;
    parts[i].stream = launches[i].stream;
  }
  state_->run({parts.data(), launches.size()}, extents);
}

void GpuInstance::launch(const Args& args, std::span<const std::int64_t> extents, int rank,
                         const cuda::Stream& stream) {
  run(*prepare(args, rank), extents, stream);
}

std::shared_ptr<GpuLaunch> GpuInstance::prepare(const Args& args, int rank) {
  const State& s = *state_;
  State::RankState& own = state_->local(rank);
  s.key_of(args, own.key);
  auto* known = own.prepared.find([&](const auto& p) { return p->key == own.key; });
  if (known != nullptr) return *known;
  s.check_args(args);
  auto made = std::make_shared<GpuLaunch>();
  made->rank = rank;
  made->key = own.key;
  made->tensors.resize(args.tensors.size());
  for (const TensorArg& arg : args.tensors) made->rooms.push_back(room_of(arg));
  for (std::size_t t = 0; t < args.tensors.size(); ++t) {
    if (s.program->tensors[t].kind == TensorKind::kBuffer) continue;
    for (std::size_t r = 0; r < s.signals.on.size(); ++r) {
      made->tensors[t].push_back(address_of(args.tensors[t], r));
    }
  }
  made->scalars = address_of(args.scalars, static_cast<std::size_t>(rank));
  made->starts_early = args.starts_early;
  return own.prepared.keep(std::move(made));
}

void GpuInstance::run(GpuLaunch& launch, std::span<const std::int64_t> extents,
                      const cuda::Stream& stream) {
  State::Part part;
  part.launch = &launch;
  part.stream = &stream;
  state_->run({&part, 1}, extents);
}

std::int64_t GpuInstance::num_encoded() const { return state_->num_encoded; }

void GpuInstance::replay_copies(bool on) {
  state_->replays_copies = on && std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr;
}

std::optional<SmDemand> GpuInstance::waiting() const {
  return state_->waits ? std::optional(state_->demand()) : std::nullopt;
}

void GpuInstance::wait() {
  state_->world.synchronize();
  if (state_->world.aborted()) state_->world.throw_fault();
}

void GpuInstance::recover() {
  state_->extents = {};
  state_->zero();
}

void GpuInstance::set_recording(bool on) {
  STRETTO_CHECK(state_->events != nullptr, "the kernel was not built to record");
  State& s = *state_;
  s.events->set_enabled(on);
  s.recording = on;
  ++s.encoding;  // where the timestamps go is encoded
  if (!s.engines) return;
  std::vector<std::int64_t> epochs;  // of the next launches
  for (int r : s.world.local_ranks()) {
    const cuda::Stream& stream = s.world.stream(r);
    stream.download(&epochs.emplace_back(), s.local(r).control->address(), sizeof(std::int64_t));
    stream.synchronize();
  }
  s.engines->set_recording(on, epochs);
}

bool GpuInstance::records() const { return state_->events != nullptr; }

std::int64_t GpuInstance::collect(Recorder& recorder) {
  STRETTO_CHECK(state_->events != nullptr, "the kernel was not built to record");
  std::int64_t error_ns = state_->events->collect(program(), recorder);
  if (state_->engines) error_ns += state_->engines->collect(recorder);
  return error_ns;
}

const Program& GpuInstance::program() const { return *state_->program; }
const std::string& GpuInstance::source() const { return state_->kernel.source; }
double GpuInstance::compile_seconds() const { return state_->image.compile_seconds; }
bool GpuInstance::from_cache() const { return state_->image.from_cache; }

}  // namespace stretto
