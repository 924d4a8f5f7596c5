#include "stretto/lang/program_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"

namespace stretto {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxProgramBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxExpandedBytes = std::size_t{256} << 20;

std::string quote(const fs::path& path) {
  std::string text = "'";
  for (char c : path.string()) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// The system's C++ compiler on `file` with more arguments; UserError with its messages.
void run_compiler(const fs::path& file, const fs::path& include_dir, const std::string& arguments,
                  const fs::path& output) {
  fs::path messages = output.string() + ".log";
  const char* compiler = std::getenv("CXX");
  std::string command =
      fmt::format("{} -std=c++20 -O0 -fPIC -I{} {} {} -o {} 2> {}", compiler ? compiler : "c++",
                  quote(include_dir), arguments, quote(file), quote(output), quote(messages));
  int status = std::system(command.c_str());
  std::string said = fs::exists(messages) ? read_file(messages, kMaxProgramBytes) : "";
  fs::remove(messages);
  if (status == 0) return;
  fs::remove(output);
  throw UserError(fmt::format("{}: does not compile:\n{}", file.string(), said.substr(0, 4000)));
}

// Compiles the file into a shared object under the cache; returns its path. The key covers every
// header that the file includes.
fs::path compile_file(const fs::path& file, const fs::path& include_dir) {
  read_file(file, kMaxProgramBytes);  // its errors are clearer than the compiler's
  fs::path dir = env_cache_dir() / "programs";
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) {
    throw UserError(
        fmt::format("{}: cannot be created: {} (STRETTO_CACHE_DIR chooses another place)",
                    dir.string(), error.message()));
  }
  fs::path stem = dir / fmt::format("{}", ::getpid());
  fs::path expanded = stem.string() + ".ii", made = stem.string() + ".tmp";
  run_compiler(file, include_dir, "-E", expanded);
  std::string source = read_file(expanded, kMaxExpandedBytes);
  fs::remove(expanded);
  std::size_t key = std::hash<std::string>{}(source);
  fs::path object = dir / fmt::format("{:016x}.so", key);
  if (fs::exists(object)) return object;
  run_compiler(file, include_dir, "-shared", made);
  fs::rename(made, object);
  return object;
}

// The address of a global function by its mangled name, or null.
template <typename Function>
Function find_function(void* library, const char* mangled) {
  return reinterpret_cast<Function>(dlsym(library, mangled));
}

}  // namespace

ProgramFile::ProgramFile(const fs::path& file, const fs::path& include_dir) : name_(file.string()) {
  fs::path object = compile_file(file, include_dir);
  void* library = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw UserError(fmt::format("{}: {}", name_, dlerror()));
  build_ = find_function<decltype(build_)>(library, "_Z15stretto_programi");
  build_shape_ = find_function<decltype(build_shape_)>(
      library, "_Z15stretto_programRKN7stretto12ProgramShapeE");
  if (build_ != nullptr || build_shape_ != nullptr) return;
  throw UserError(
      fmt::format("{}: defines neither 'stretto::Program stretto_program(int world_size)' nor "
                  "'stretto::Program stretto_program(const stretto::ProgramShape& shape)'",
                  name_));
}

Program ProgramFile::call(const ProgramShape& shape) const {
  if (build_shape_ != nullptr) return build_shape_(shape);
  if (shape.m > 0 || shape.n > 0 || shape.k > 0) {
    throw UserError(fmt::format(
        "{}: has sizes of its own; to be told them, define stretto_program(const ProgramShape&)",
        name_));
  }
  return build_(shape.world_size);
}

// What the user's function throws is the user's, whatever its type.
Program ProgramFile::program(const ProgramShape& shape) const {
  try {
    return call(shape);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw UserError(fmt::format("{}: stretto_program({}): {}", name_, shape.world_size, e.what()));
  }
}

}  // namespace stretto
