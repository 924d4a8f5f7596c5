// Compiled code on a device and its launch. KernelImage (nvrtc.h) comes before.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "stretto/runtime/cuda/device.h"
#include "stretto/runtime/cuda/stream.h"

namespace stretto::cuda {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct LaunchConfig {
  Dim3 grid;     // blocks; a multiple of the cluster in each dimension
  Dim3 block;    // threads
  Dim3 cluster;  // blocks; 1x1x1: no cluster
  std::size_t dynamic_shared_bytes = 0;
  bool cooperative = false;                 // all blocks are resident together, or the launch fails
  bool programmatic_serialization = false;  // may start before the stream's kernel before it ends

  std::string to_string() const;
};

// Code loaded on one device. Loading and unloading may wait for running kernels, so everything that
// is to run at the same time as a waiting kernel is loaded before that starts.
class Module {
 public:
  // `cubin` is an ELF image for this device. `name` stands for the module in messages.
  Module(const Device& device, const std::string& cubin, std::string name);

  CUmodule handle() const { return module_->get(); }
  const std::string& name() const { return name_; }
  CUdeviceptr global(const std::string& symbol) const;  // address of a __device__ variable

 private:
  friend class Kernel;
  using Handle = Owned<CUmodule, &Driver::module_unload>;

  std::string name_;
  std::shared_ptr<const Handle> module_;  // shared with its kernels
};

// One __global__ function of a module, which it keeps loaded. Loaded when this is made, not at its
// first launch.
class Kernel {
 public:
  Kernel(const Module& module, const std::string& symbol);
  Kernel(Kernel&&) = default;
  Kernel& operator=(Kernel&&) = default;

  struct Attributes {
    int registers = 0;      // per thread
    int local_bytes = 0;    // per thread: spills and stack
    int static_shared = 0;  // bytes per block
    int max_threads = 0;    // per block
  };
  const Attributes& attributes() const { return attributes_; }
  const std::string& name() const { return name_; }

  // Needed before a launch with more than 48 KiB of dynamic shared memory.
  void set_max_dynamic_shared(std::size_t bytes) const;

  // How many blocks an SM holds, and how many clusters the device holds, at the same time.
  int max_blocks_per_sm(int threads, std::size_t dynamic_shared_bytes) const;
  int max_clusters(const LaunchConfig& config) const;

  // args[i] points to parameter i, which is copied before the call returns.
  void launch(const Stream& stream, const LaunchConfig& config, void** args) const;

 private:
  std::string name_;
  std::shared_ptr<const Module::Handle> module_;
  CUfunction function_ = nullptr;
  Attributes attributes_;
};

}  // namespace stretto::cuda
