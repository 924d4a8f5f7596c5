#include "stretto/lang/program_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <system_error>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/log.h"

namespace stretto {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxProgramBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxExpandedBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxLibraryBytes = std::size_t{1} << 30;

std::string quote(const fs::path& path) {
  std::string text = "'";
  for (char c : path.string()) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// For what the compiler writes; gone in the end.
class Scratch {
 public:
  Scratch() {
    std::error_code error;
    fs::path place = fs::temp_directory_path(error);
    std::string made = (place / "stretto-XXXXXX").string();
    if (!error && mkdtemp(made.data()) == nullptr) error.assign(errno, std::generic_category());
    if (error) {
      throw UserError(fmt::format("{}: no folder for what is compiled: {} (TMPDIR chooses another)",
                                  place.string(), error.message()));
    }
    path_ = made;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string why(int status, const std::string& said) {
  if (WIFSIGNALED(status)) return fmt::format("stopped by {}", strsignal(WTERMSIG(status)));
  return said.empty() ? fmt::format("no message, status {}", WEXITSTATUS(status)) : said;
}

// With what every file is compiled. A function that ends without its program would crash.
std::string compiler() {
  const char* chosen = std::getenv("CXX");
  return fmt::format("{} -std=c++20 -O0 -fPIC -Werror=return-type", chosen ? chosen : "c++");
}

// The system's C++ compiler on `file` with more arguments; UserError with its messages.
void run_compiler(const fs::path& file, const fs::path& include_dir, const std::string& arguments,
                  const fs::path& output) {
  fs::path messages = output.string() + ".log";
  std::string command = fmt::format("{} -I{} {} {} -o {} 2> {}", compiler(), quote(include_dir),
                                    arguments, quote(file), quote(output), quote(messages));
  int status = std::system(command.c_str());
  if (status == 0) return;
  std::string said = fs::exists(messages) ? read_file(messages, kMaxProgramBytes) : "";
  throw UserError(
      fmt::format("{}: does not compile:\n{}", file.string(), why(status, said).substr(0, 4000)));
}

// What follows a library in a file that is kept, where loaders do not look: who maps a part of one
// that is cut short gets SIGBUS.
std::string seal_of(std::string_view library) {
  return fmt::format("stretto {:016x}", std::hash<std::string_view>{}(library));
}

// Whether the file is as keep() has left it.
bool is_whole(const fs::path& object) {
  std::string bytes;
  try {
    bytes = read_file(object, kMaxLibraryBytes);
  } catch (const UserError&) {
    return false;
  }
  std::size_t seal_bytes = seal_of("").size();
  if (bytes.size() <= seal_bytes) return false;
  std::string_view library(bytes.data(), bytes.size() - seal_bytes);
  return std::string_view(bytes).substr(library.size()) == seal_of(library);
}

// On the disk when it returns.
std::error_code write_file(const fs::path& path, std::string_view bytes) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool good = fd >= 0;
  while (good && !bytes.empty()) {
    ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    good = written >= 0;
    if (good) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  good = good && ::fsync(fd) == 0;
  std::error_code error(good ? 0 : errno, std::generic_category());
  if (fd >= 0) ::close(fd);
  return error;
}

// Whole or not at all, since others may look for it.
void keep(const fs::path& made, const fs::path& object) {
  fs::path temporary = object.string() + fmt::format(".{}", ::getpid());
  std::string library = read_file(made, kMaxLibraryBytes);
  std::error_code error, ignored;
  fs::create_directories(object.parent_path(), error);
  if (!error) error = write_file(temporary, library + seal_of(library));
  if (!error) fs::rename(temporary, object, error);
  if (!error) return;
  fs::remove(temporary, ignored);
  log_warning(
      fmt::format("compiled program files are not kept: {}: {}", object.string(), error.message()));
}

void* open_library(const fs::path& object) { return dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL); }

// The file as a library. It is kept by the compiler and what that sees, so that every header that
// the file includes counts.
void* load(const fs::path& file, const fs::path& include_dir) {
  read_file(file, kMaxProgramBytes);  // its errors are clearer than the compiler's
  Scratch scratch;
  run_compiler(file, include_dir, "-E", scratch / "program.ii");
  std::string source = read_file(scratch / "program.ii", kMaxExpandedBytes);
  std::size_t key = std::hash<std::string>{}(compiler() + source);
  fs::path object = env_cache_dir() / "programs" / fmt::format("{:016x}.so", key);
  if (is_whole(object)) {
    if (void* kept = open_library(object)) return kept;
  }
  run_compiler(file, include_dir, "-shared", scratch / "program.so");
  keep(scratch / "program.so", object);
  if (void* kept = open_library(object)) return kept;
  if (void* made = open_library(scratch / "program.so")) return made;
  throw UserError(fmt::format("{}: {}", file.string(), dlerror()));
}

// The address of a global function by its mangled name, or null.
template <typename Function>
Function find_function(void* library, const char* mangled) {
  return reinterpret_cast<Function>(dlsym(library, mangled));
}

}  // namespace

ProgramFile::ProgramFile(const fs::path& file, const fs::path& include_dir) : name_(file.string()) {
  void* library = load(file, include_dir);
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
  } catch (...) {
    throw UserError(fmt::format("{}: stretto_program({}): throws what is no std::exception", name_,
                                shape.world_size));
  }
}

}  // namespace stretto
