#include "stretto/runtime/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "stretto/base/errors.h"

namespace stretto::cuda {
namespace {

// Cluster launch and tensor maps came with 12.0, cuStreamGetCaptureInfo_v3 with 12.3.
constexpr int kOldestDriver = 12030;

struct OpenedDriver {
  Driver table{};
  std::string error;  // empty where the table is usable
};

std::string describe(const Driver& table, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  table.get_error_name(result, &name);
  table.get_error_string(result, &text);
  return fmt::format("{}: {}", name == nullptr ? fmt::format("CUresult {}", int{result}) : name,
                     text == nullptr ? "unknown" : text);
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

OpenedDriver open_driver() {
  OpenedDriver opened;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.error = fmt::format("no CUDA driver: libcuda.so.1 not found ({})", dlerror());
    return opened;
  }
  Driver& table = opened.table;
  std::string missing;
#define STRETTO_CUDA_LOAD(member, symbol, parameters)                               \
  table.member = reinterpret_cast<decltype(table.member)>(dlsym(library, #symbol)); \
  if (table.member == nullptr && missing.empty()) missing = #symbol;
  STRETTO_CUDA_FUNCTIONS(STRETTO_CUDA_LOAD)
#undef STRETTO_CUDA_LOAD
  if (!missing.empty()) {
    opened.error = fmt::format("the CUDA driver has no {}: stretto needs that of CUDA {} or later",
                               missing, version_text(kOldestDriver));
    return opened;
  }
  auto refused = [&](CUresult result) {
    if (result == CUDA_SUCCESS) return false;
    opened.error = fmt::format("the CUDA driver does not start: {}", describe(table, result));
    return true;
  };
  int version = 0;
  if (refused(table.driver_get_version(&version))) return opened;
  if (version < kOldestDriver) {
    opened.error = fmt::format("the CUDA driver is that of CUDA {}: stretto needs {} or later",
                               version_text(version), version_text(kOldestDriver));
    return opened;
  }
  refused(table.init(0));
  return opened;
}

OpenedDriver& opened_driver() {
  static OpenedDriver opened = open_driver();
  return opened;
}

}  // namespace

const Driver& driver() {
  const OpenedDriver& opened = opened_driver();
  if (!opened.error.empty()) throw DeviceError(opened.error);
  return opened.table;
}

Driver& driver_table_of_tests() {
  driver();
  return opened_driver().table;
}

bool has_driver() { return opened_driver().error.empty(); }

int num_devices() {
  if (!has_driver()) return 0;
  int count = 0;
  check(driver().device_get_count(&count), "cuDeviceGetCount");
  return count;
}

std::string error_text(CUresult result) { return describe(driver(), result); }

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    throw DeviceError(fmt::format("{}: {}", what, error_text(result)));
  }
}

void check(CUresult result, const std::string& what) { check(result, what.c_str()); }

}  // namespace stretto::cuda
