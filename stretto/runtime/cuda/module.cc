#include "stretto/runtime/cuda/module.h"

#include <fmt/format.h>

#include <array>

namespace stretto::cuda {
namespace {

CUmodule load(const Device& device, const std::string& cubin, const std::string& name) {
  ContextScope scope(*device.context());
  CUmodule module = nullptr;
  check(driver().module_load_data(&module, cubin.data()),
        fmt::format("loading {} ({} bytes) on GPU {}", name, cubin.size(),
                    device.properties().ordinal));
  return module;
}

bool is_one(const Dim3& d) { return d.x == 1 && d.y == 1 && d.z == 1; }

std::string text(const Dim3& d) { return fmt::format("{}x{}x{}", d.x, d.y, d.z); }

// The driver's form of a LaunchConfig, which points into itself.
struct DriverLaunch {
  DriverLaunch(const LaunchConfig& c, CUstream stream) {
    config = {.gridDimX = c.grid.x,
              .gridDimY = c.grid.y,
              .gridDimZ = c.grid.z,
              .blockDimX = c.block.x,
              .blockDimY = c.block.y,
              .blockDimZ = c.block.z,
              .sharedMemBytes = static_cast<unsigned>(c.dynamic_shared_bytes),
              .hStream = stream,
              .attrs = attributes.data(),
              .numAttrs = 0};
    if (!is_one(c.cluster)) {
      CUlaunchAttribute& a = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
      a.value.clusterDim = {c.cluster.x, c.cluster.y, c.cluster.z};
    }
    if (c.cooperative) add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).value.cooperative = 1;
    if (c.programmatic_serialization) {
      add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
          .value.programmaticStreamSerializationAllowed = 1;
    }
  }
  DriverLaunch(const DriverLaunch&) = delete;
  DriverLaunch& operator=(const DriverLaunch&) = delete;

  CUlaunchAttribute& add(CUlaunchAttributeID id) {
    CUlaunchAttribute& attribute = attributes.at(config.numAttrs++);
    attribute.id = id;
    return attribute;
  }

  std::array<CUlaunchAttribute, 3> attributes{};
  CUlaunchConfig config{};
};

}  // namespace

std::string LaunchConfig::to_string() const {
  return fmt::format("grid {} block {} cluster {} shared {}{}{}", text(grid), text(block),
                     text(cluster), dynamic_shared_bytes, cooperative ? " cooperative" : "",
                     programmatic_serialization ? " programmatic" : "");
}

Module::Module(const Device& device, const std::string& cubin, std::string name)
    : name_(std::move(name)),
      module_(std::make_shared<const Handle>(device.context(), load(device, cubin, name_))) {}

CUdeviceptr Module::global(const std::string& symbol) const {
  ContextScope scope(*module_->context());
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  check(driver().module_get_global(&address, &bytes, handle(), symbol.c_str()),
        fmt::format("finding the variable {} in {}", symbol, name_));
  return address;
}

Kernel::Kernel(const Module& module, const std::string& symbol)
    : name_(symbol), module_(module.module_) {
  ContextScope scope(*module_->context());
  // Under lazy loading, the driver's default, this call loads the function (CUDA C++ Programming
  // Guide, "Lazy Loading").
  check(driver().module_get_function(&function_, module.handle(), symbol.c_str()),
        fmt::format("finding the kernel {} in {}", symbol, module.name()));
  auto read = [&](CUfunction_attribute which) {
    int value = 0;
    check(driver().func_get_attribute(&value, which, function_), "cuFuncGetAttribute");
    return value;
  };
  attributes_ = {.registers = read(CU_FUNC_ATTRIBUTE_NUM_REGS),
                 .local_bytes = read(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
                 .static_shared = read(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
                 .max_threads = read(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)};
}

void Kernel::set_max_dynamic_shared(std::size_t bytes) const {
  ContextScope scope(*module_->context());
  check(driver().func_set_attribute(function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    static_cast<int>(bytes)),
        fmt::format("{}: allowing {} bytes of dynamic shared memory", name_, bytes));
}

int Kernel::max_blocks_per_sm(int threads, std::size_t dynamic_shared_bytes) const {
  ContextScope scope(*module_->context());
  int blocks = 0;
  check(driver().occupancy_max_active_blocks(&blocks, function_, threads, dynamic_shared_bytes),
        fmt::format("{}: cuOccupancyMaxActiveBlocksPerMultiprocessor", name_));
  return blocks;
}

int Kernel::max_clusters(const LaunchConfig& config) const {
  ContextScope scope(*module_->context());
  DriverLaunch launch(config, nullptr);
  int clusters = 0;
  check(driver().occupancy_max_active_clusters(&clusters, function_, &launch.config),
        fmt::format("{}: cuOccupancyMaxActiveClusters ({})", name_, config.to_string()));
  return clusters;
}

void Kernel::launch(const Stream& stream, const LaunchConfig& config, void** args) const {
  stream.make_current();
  DriverLaunch launch(config, stream.handle());
  CUresult result = driver().launch_kernel_ex(&launch.config, function_, args, nullptr);
  if (result != CUDA_SUCCESS) {
    check(result, fmt::format("launching {} ({})", name_, config.to_string()));
  }
}

}  // namespace stretto::cuda
