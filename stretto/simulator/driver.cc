// The CUDA driver interface of the simulated GPUs: the functions that stretto calls, under the
// names and with the meaning of NVIDIA's "CUDA Driver API" reference. Device memory is the host's.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include "stretto/simulator/copies.h"
#include "stretto/simulator/cuda_text.h"
#include "stretto/simulator/driver_state.h"
#include "stretto/simulator/image.h"

namespace stretto::cuda {

namespace {

constexpr int kVersion = 13000;

constexpr int kMostGpus = 64, kMostQueues = 32;

// What the environment asks for; cuInit refuses what it cannot.
struct Asked {
  int gpus = 2, sms = sim::kMostSms;
  std::uint64_t seed = 1;
  int queues = 0;     // hardware queues of a GPU, which its streams share; 0: one for each stream
  std::string wrong;  // empty: nothing
};

template <typename Number>
void read(const char* variable, Number least, Number most, Number& value, std::string& wrong) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return;
  Number read = 0;
  auto [end, error] = std::from_chars(text, text + std::strlen(text), read);
  if (error != std::errc() || *end != '\0' || read < least || read > most) {
    wrong =
        fmt::format("{} is '{}': need a whole number from {} to {}", variable, text, least, most);
    return;
  }
  value = read;
}

const Asked& asked() {
  static const Asked all = [] {
    Asked a;
    read("STRETTO_SIMULATED_GPUS", 1, kMostGpus, a.gpus, a.wrong);
    read("STRETTO_SIMULATED_SMS", 1, sim::kMostSms, a.sms, a.wrong);
    read("STRETTO_SIMULATOR_SEED", std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(),
         a.seed, a.wrong);
    read("STRETTO_SIMULATED_QUEUES", 1, kMostQueues, a.queues, a.wrong);
    return a;
  }();
  return all;
}

}  // namespace

sim::Tasks& tasks() {
  static auto* const all = new sim::Tasks(asked().gpus, asked().sms, asked().seed);
  return *all;
}

CUresult state() { return tasks().violation().empty() ? CUDA_SUCCESS : kLaunchFailed; }

struct CUctx_st {
  int device = 0;
};
namespace {
CUctx_st* context_of(int device) {
  static CUctx_st contexts[kMostGpus];
  contexts[device].device = device;
  return &contexts[device];
}
thread_local std::vector<CUcontext> current;

// Those that what is enqueued on `stream` goes through.
std::vector<int> hardware_queues(const CUstream_st& stream, int other) {
  if (asked().queues == 0) return {};
  std::vector<int> out;
  for (int device : {stream.device, other}) {
    if (device >= 0) out.push_back(device * kMostQueues + stream.queue);
  }
  return out;
}
// A task of a stream that captures nothing.
void add(CUstream stream, sim::Work work, std::vector<sim::TaskRef> after, int other = -1) {
  after.push_back(stream->last);
  stream->last = tasks().add(std::move(work), std::move(after), hardware_queues(*stream, other));
}
}  // namespace

int current_device() {
  return current.empty() || current.back() == nullptr ? 0 : current.back()->device;
}

struct CUgraph_st {
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::vector<Node> nodes;
};
struct CUevent_st {
  sim::TaskRef task;
  std::shared_ptr<Capture> capture;  // where it was recorded in one
  std::vector<int> nodes;
};
struct CUfunc_st {
  std::string name;
  void (*entry)(void**) = nullptr;
  const unsigned long* sizes = nullptr;
  int max_threads = 1024;
};
struct CUmod_st {
  void* library = nullptr;
  std::map<std::string, CUfunc_st> functions;
};

namespace {

std::mutex capture_mutex;

}  // namespace

CUresult enqueue(CUstream stream, std::function<sim::Work()> work, int other) {
  if (CUresult s = state(); s != CUDA_SUCCESS) return s;
  if (stream->capture != nullptr) {
    std::lock_guard lock(capture_mutex);
    std::vector<Node>& nodes = stream->capture->nodes;
    nodes.push_back({std::move(work), stream->nodes});
    stream->nodes = {static_cast<int>(nodes.size()) - 1};
    return CUDA_SUCCESS;
  }
  add(stream, work(), {}, other);
  return CUDA_SUCCESS;
}

CUresult enqueue_act(CUstream stream, std::function<void()> act, int other) {
  return enqueue(
      stream, [act = std::move(act)] { return sim::Work{.act = act}; }, other);
}

namespace {

std::unique_ptr<sim::Launch> launch_of(const CUfunc_st& function, const sim::LaunchShape& shape,
                                       int device,
                                       const std::vector<std::vector<unsigned char>>& arguments) {
  auto launch = std::make_unique<sim::Launch>();
  launch->name = function.name;
  launch->entry = function.entry;
  launch->shape = shape;
  launch->device = device;
  for (const std::vector<unsigned char>& argument : arguments) {
    std::vector<unsigned char>& kept = launch->arguments.emplace_back(argument.size() + 64);
    auto at = (reinterpret_cast<std::uintptr_t>(kept.data()) + 63) / 64 * 64;
    std::memcpy(reinterpret_cast<void*>(at), argument.data(), argument.size());
    launch->argument_addresses.push_back(reinterpret_cast<void*>(at));
  }
  return launch;
}

}  // namespace

SIM_API cuGetErrorString(CUresult r, const char** text) {
  *text = r == kLaunchFailed ? "the simulated GPU's kernel did what none may (see above)"
          : r == kInvalid    ? asked().wrong.c_str()
                             : "";
  return CUDA_SUCCESS;
}
SIM_API cuGetErrorName(CUresult r, const char** name) {
  static thread_local std::string text;
  text = r == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : fmt::format("CUresult {}", int{r});
  *name = text.c_str();
  return CUDA_SUCCESS;
}
SIM_API cuInit(unsigned) { return asked().wrong.empty() ? CUDA_SUCCESS : kInvalid; }
SIM_API cuDriverGetVersion(int* version) { return *version = kVersion, CUDA_SUCCESS; }

SIM_API cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= asked().gpus) return CUDA_ERROR_NO_DEVICE;
  return *device = ordinal, CUDA_SUCCESS;
}
SIM_API cuDeviceGetCount(int* count) { return *count = asked().gpus, CUDA_SUCCESS; }
SIM_API cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(length), "simulated Hopper");
  return CUDA_SUCCESS;
}
SIM_API cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  return *bytes = kMemoryBytes, CUDA_SUCCESS;
}
SIM_API cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return *value = 1'000'000, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return *value = asked().sms, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return *value = device + 1, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      return *value = 0, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return *value = 3'000'000, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return *value = 6144, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return *value = 50 << 20, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return *value = sim::SmResources::kThreads, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return *value = 9, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return *value = 0, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return *value = static_cast<int>(sim::SmResources::kShared), CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return *value = sim::SmResources::kRegisters, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return *value = 227 * 1024, CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
      return *value = 1, CUDA_SUCCESS;
  }
  return kInvalid;
}
SIM_API cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) { return *can = 1, CUDA_SUCCESS; }
SIM_API cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute, CUdevice, CUdevice) {
  return *value = 1, CUDA_SUCCESS;
}
SIM_API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return *context = context_of(device), CUDA_SUCCESS;
}
SIM_API cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
SIM_API cuCtxSetCurrent(CUcontext context) {
  if (current.empty()) current.emplace_back();
  return current.back() = context, CUDA_SUCCESS;
}
SIM_API cuCtxGetCurrent(CUcontext* context) {
  return *context = current.empty() ? nullptr : current.back(), CUDA_SUCCESS;
}
SIM_API cuCtxPushCurrent_v2(CUcontext context) { return current.push_back(context), CUDA_SUCCESS; }
SIM_API cuCtxPopCurrent_v2(CUcontext* context) {
  if (current.empty()) return kInvalid;
  if (context != nullptr) *context = current.back();
  return current.pop_back(), CUDA_SUCCESS;
}
SIM_API cuCtxSynchronize() { return tasks().await_all(), state(); }
SIM_API cuCtxEnablePeerAccess(CUcontext, unsigned) { return CUDA_SUCCESS; }

SIM_API cuStreamCreateWithPriority(CUstream* stream, unsigned, int) {
  static std::array<std::atomic<int>, kMostGpus> made;
  const int device = current_device();
  const int nth = made[static_cast<std::size_t>(device)]++;
  return *stream = new CUstream_st{.device = device, .queue = nth % std::max(asked().queues, 1)},
         CUDA_SUCCESS;
}
SIM_API cuStreamSynchronize(CUstream stream) {
  if (stream->capture != nullptr) return kCaptureInvalid;
  return tasks().await(stream->last), state();
}
SIM_API cuStreamQuery(CUstream stream) {
  if (CUresult s = state(); s != CUDA_SUCCESS) return s;
  return tasks().done(stream->last) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
SIM_API cuStreamDestroy_v2(CUstream stream) {
  tasks().await(stream->last);
  return delete stream, CUDA_SUCCESS;
}
SIM_API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (event->capture != nullptr) {
    std::lock_guard lock(capture_mutex);
    if (stream->capture != nullptr && stream->capture != event->capture) return kCaptureInvalid;
    if (event->capture->streams.empty()) return kCaptureInvalid;  // it has ended
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->capture->streams.push_back(stream);
      stream->nodes.clear();
    }
    stream->nodes.insert(stream->nodes.end(), event->nodes.begin(), event->nodes.end());
    return CUDA_SUCCESS;
  }
  if (stream->capture != nullptr) return event->task == nullptr ? CUDA_SUCCESS : kCaptureInvalid;
  add(stream, {}, {event->task});
  return state();
}
SIM_API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, std::uint64_t value,
                               unsigned flags) {
  return enqueue(stream, [=] {
    return sim::Work{.condition = [=] {
      std::uint64_t now =
          __atomic_load_n(reinterpret_cast<std::uint64_t*>(bytes_at(address)), __ATOMIC_ACQUIRE);
      return flags == CU_STREAM_WAIT_VALUE_EQ ? now == value
                                              : static_cast<std::int64_t>(now - value) >= 0;
    }};
  });
}
SIM_API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, std::uint64_t value,
                                unsigned) {
  return enqueue_act(stream, [=] {
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(bytes_at(address)), value, __ATOMIC_RELEASE);
  });
}
SIM_API cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  static std::uint64_t captures = 0;
  std::lock_guard lock(capture_mutex);
  if (stream->capture != nullptr) return kCaptureInvalid;
  stream->capture = std::make_shared<Capture>(Capture{++captures, {}, {stream}});
  stream->nodes.clear();
  return CUDA_SUCCESS;
}
SIM_API cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  std::lock_guard lock(capture_mutex);
  std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->streams.front() != stream) return kCaptureInvalid;
  for (CUstream s : capture->streams) s->capture = nullptr;
  capture->streams.clear();
  return *graph = new CUgraph_st{std::move(capture->nodes)}, CUDA_SUCCESS;
}
SIM_API cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, std::uint64_t* id,
                                  CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
                                  std::size_t*) {
  *status =
      stream->capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (id != nullptr && stream->capture != nullptr) *id = stream->capture->id;
  return CUDA_SUCCESS;
}

SIM_API cuEventCreate(CUevent* event, unsigned) { return *event = new CUevent_st, CUDA_SUCCESS; }
SIM_API cuEventRecord(CUevent event, CUstream stream) {
  event->capture = stream->capture;
  event->nodes = stream->nodes;
  if (stream->capture == nullptr) add(stream, {}, {});
  event->task = stream->capture == nullptr ? stream->last : nullptr;
  return state();
}
SIM_API cuEventQuery(CUevent event) {
  if (CUresult s = state(); s != CUDA_SUCCESS) return s;
  return tasks().done(event->task) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
SIM_API cuEventSynchronize(CUevent event) { return tasks().await(event->task), state(); }
SIM_API cuEventElapsedTime(float* ms, CUevent from, CUevent to) {
  if (!tasks().done(from->task) || !tasks().done(to->task)) return CUDA_ERROR_NOT_READY;
  if (from->task == nullptr || to->task == nullptr) return kInvalid;
  *ms = static_cast<float>(to->task->end_ns - from->task->end_ns) * 1e-6f;
  return CUDA_SUCCESS;
}
SIM_API cuEventDestroy_v2(CUevent event) { return delete event, CUDA_SUCCESS; }

SIM_API cuModuleLoadData(CUmodule* module, const void* image) {
  auto loaded = std::make_unique<CUmod_st>();
  loaded->library = sim::open_image(image);
  if (loaded->library == nullptr) return kInvalid;
  return *module = loaded.release(), CUDA_SUCCESS;
}
// What is loaded stays: kernels may run, and the next rank loads the same.
SIM_API cuModuleUnload(CUmodule module) { return delete module, CUDA_SUCCESS; }
SIM_API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  auto find = [&](const std::string& symbol) { return dlsym(module->library, symbol.c_str()); };
  CUfunc_st& f = module->functions[name];
  f.name = name;
  f.entry = reinterpret_cast<void (*)(void**)>(find(sim::entry_name(name)));
  f.sizes = static_cast<const unsigned long*>(find(sim::sizes_name(name)));
  if (const void* threads = find(sim::threads_name(name))) {
    f.max_threads = *static_cast<const int*>(threads);
  }
  if (f.entry == nullptr) return kNotFound;
  return *function = &f, CUDA_SUCCESS;
}
SIM_API cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes, CUmodule module,
                             const char* name) {
  void* found = dlsym(module->library, name);
  if (found == nullptr) return kNotFound;
  *address = reinterpret_cast<CUdeviceptr>(found);
  if (bytes != nullptr) *bytes = 0;
  return CUDA_SUCCESS;
}
SIM_API cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
  *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? function->max_threads
           : which == CU_FUNC_ATTRIBUTE_NUM_REGS
               ? static_cast<int>(
                     sim::registers_per_thread(static_cast<unsigned>(function->max_threads)))
               : 0;
  return CUDA_SUCCESS;
}
SIM_API cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

SIM_API cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                         void**) {
  sim::LaunchShape shape{.grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                         .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                         .cluster = 1,
                         .shared_bytes = config->sharedMemBytes};
  bool early = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& a = config->attrs[i];
    if (a.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) shape.cluster = a.value.clusterDim.x;
    if (a.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      early = a.value.programmaticStreamSerializationAllowed != 0;
    }
  }
  bool flat = shape.grid.y * shape.grid.z * shape.block.y * shape.block.z == 1;
  if (!flat || shape.block.x > static_cast<unsigned>(function->max_threads) ||
      shape.grid.x % shape.cluster != 0 || shape.shared_bytes > 227 * 1024) {
    return kInvalid;
  }
  std::vector<std::vector<unsigned char>> kept;
  for (std::size_t i = 0; function->sizes[i] != 0; ++i) {
    const auto* first = static_cast<const unsigned char*>(arguments[i]);
    kept.emplace_back(first, first + function->sizes[i]);
  }
  return enqueue(config->hStream, [f = *function, shape, early, device = config->hStream->device,
                                   kept = std::move(kept)] {
    return sim::Work{.launch = [=] { return launch_of(f, shape, device, kept); }, .early = early};
  });
}

SIM_API cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  return *exec = new CUgraphExec_st{graph->nodes}, CUDA_SUCCESS;
}
SIM_API cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
SIM_API cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  if (CUresult s = state(); s != CUDA_SUCCESS) return s;
  std::vector<sim::TaskRef> made;
  for (const Node& node : exec->nodes) {
    std::vector<sim::TaskRef> after;
    for (int a : node.after) after.push_back(made[static_cast<std::size_t>(a)]);
    if (after.empty()) after.push_back(stream->last);
    made.push_back(tasks().add(node.work(), std::move(after)));
  }
  made.push_back(stream->last);
  stream->last = tasks().add({}, made);
  return CUDA_SUCCESS;
}
SIM_API cuGraphExecDestroy(CUgraphExec exec) { return delete exec, CUDA_SUCCESS; }
SIM_API cuGraphDestroy(CUgraph graph) { return delete graph, CUDA_SUCCESS; }

SIM_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads,
                                                    std::size_t shared) {
  return *blocks = sim::blocks_per_sm(static_cast<unsigned>(threads), shared), CUDA_SUCCESS;
}
SIM_API cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig* config) {
  unsigned size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      size = config->attrs[i].value.clusterDim.x;
    }
  }
  *clusters = asked().sms * sim::blocks_per_sm(config->blockDimX, config->sharedMemBytes) /
              static_cast<int>(size);
  return CUDA_SUCCESS;
}
SIM_API cuProfilerStart() { return CUDA_SUCCESS; }
SIM_API cuProfilerStop() { return CUDA_SUCCESS; }

SIM_API cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, std::uint32_t rank,
                               void* data, const std::uint64_t* shape, const std::uint64_t* strides,
                               const std::uint32_t* box, const std::uint32_t*,
                               CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (rank < 1 || rank > 5) return kInvalid;
  sim::TensorMap out{};
  out.data = static_cast<unsigned char*>(data);
  out.rank = static_cast<std::uint8_t>(rank);
  out.mark = sim::TensorMap::kMark;
  constexpr int kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  out.element_bytes = static_cast<std::uint8_t>(kBytes[type]);
  constexpr int kSpans[] = {0, 32, 64, 128};
  out.swizzle_bytes = static_cast<std::uint16_t>(kSpans[swizzle]);
  for (std::uint32_t d = 0; d < rank; ++d) {
    out.shape_less_1[d] = static_cast<std::uint32_t>(shape[d] - 1);
    out.box[d] = static_cast<std::uint16_t>(box[d]);
    if (d + 1 < rank) out.strides[d] = static_cast<std::int64_t>(strides[d]);
  }
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &out, sizeof out);
  return CUDA_SUCCESS;
}

}  // namespace stretto::cuda
