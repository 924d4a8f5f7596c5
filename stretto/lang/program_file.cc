#include "stretto/lang/program_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/keyed_hash.h"
#include "stretto/base/log.h"
#include "stretto/base/own_files.h"
#include "stretto/base/printable.h"
#include "stretto/base/scratch.h"

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

// With what every file is compiled. A function that ends without its program would crash.
std::string compiler() {
  return fmt::format("{} -std=c++20 -O0 -fPIC -Werror=return-type", env_compiler());
}

struct Source {
  fs::path file, include_dir;
};

// How the compiler ended (as of wait()), and what it said.
struct Ran {
  int status;
  std::string said;

  bool is_good() const { return status == 0; }
  bool is_found() const { return !WIFEXITED(status) || WEXITSTATUS(status) < 126; }  // by sh
  std::string why() const {
    if (WIFSIGNALED(status)) return fmt::format("stopped by {}", strsignal(WTERMSIG(status)));
    return said.empty() ? fmt::format("no message, status {}", WEXITSTATUS(status)) : said;
  }
  // Of several lines the one that tells most.
  std::string why_in_a_line() const {
    std::string all = why();
    std::size_t error = all.find("error: "), start = all.rfind('\n', error);
    std::string line = error == all.npos || start == all.npos ? all : all.substr(start + 1);
    line.erase(0, line.find_first_not_of("\n"));
    return printable(line.substr(0, line.find('\n')), 300);
  }
};

// The system's C++ compiler on a file, with more arguments.
Ran run_compiler(const Scratch& scratch, const Source& source, const std::string& arguments,
                 const fs::path& output) {
  const auto& [file, include_dir] = source;
  fs::path messages = output.string() + ".log";
  fs::path named = file.string().starts_with('-') ? "." / file : file;
  // A file is C++ whatever its suffix and the compiler's own rules say.
  std::string command =
      fmt::format("{} -I{} {} -x c++ {} -o {}", compiler(), quote(include_dir), arguments,
                  quote(named), quote(output));
  int status = scratch.run(command, messages);
  std::error_code error;
  return {status, fs::exists(messages, error) ? read_file(messages, kMaxProgramBytes) : ""};
}

// Nothing of a file can be wrong where the compiler does not manage the language's own headers.
void require_compiler(const Scratch& scratch, const Source& source, const Ran& ran) {
  scratch.require_room();
  auto blame = [&](const std::string& what) {
    throw UserError(fmt::format("{}: not compiled: '{}' {} (CXX names the compiler of C++20)",
                                source.file.string(), env_compiler(), what));
  };
  if (!ran.is_found()) blame(fmt::format("cannot be run: {}", ran.why_in_a_line()));
  if (ran.is_good()) blame("ends well, but makes no file");
  fs::path headers = scratch / "headers.cc";
  std::ofstream(headers) << "#include \"stretto/lang/program_builder.h\"\n";
  Source own{headers, source.include_dir};
  Ran probe = run_compiler(scratch, own, "-shared", scratch / "headers.so");
  if (probe.is_good()) return;
  blame(fmt::format("compiles not even stretto's own headers: {}", probe.why_in_a_line()));
}

// UserError with the compiler's messages.
void compile(const Scratch& scratch, const Source& source, const std::string& arguments,
             const fs::path& output) {
  Ran ran = run_compiler(scratch, source, arguments, output);
  std::error_code error;
  if (ran.is_good() && fs::exists(output, error)) return;
  require_compiler(scratch, source, ran);
  throw UserError(fmt::format("{}: does not compile:\n{}", source.file.string(),
                              ran.why().substr(0, 4000)));
}

void* open_library(const fs::path& object) { return dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL); }

// The file as a library. It is kept by the compiler and what that sees, so that every header that
// the file includes counts.
void* load(const fs::path& file, const fs::path& include_dir) {
  if (fs::exists(file) && !fs::is_regular_file(file) && !fs::is_directory(file)) {
    throw UserError(fmt::format("{}: need a file, to be read more than once", file.string()));
  }
  read_file(file, kMaxProgramBytes);  // its errors are clearer than the compiler's
  Scratch scratch;
  compile(scratch, {file, include_dir}, "-E", scratch / "program.ii");
  std::string source = read_file(scratch / "program.ii", kMaxExpandedBytes);
  SealedFolder kept(env_cache_dir() / "programs");
  std::string name = keyed_hash("", compiler() + '\0' + source).substr(0, 32) + ".so";
  // The loader does not look at the seal behind the library. All of it has been read before: who
  // maps a part of one that is cut short gets SIGBUS.
  if (kept.read(name, kMaxLibraryBytes)) {
    if (void* library = open_library(kept.path(name))) return library;
  }
  compile(scratch, {file, include_dir}, "-shared", scratch / "program.so");
  if (std::error_code error =
          kept.write(name, read_file(scratch / "program.so", kMaxLibraryBytes))) {
    log_warning(fmt::format("compiled program files are not kept: {}: {}",
                            kept.path(name).string(), error.message()));
  } else if (void* library = open_library(kept.path(name))) {
    return library;
  } else {
    log_warning(fmt::format("compiled program files are not used again: {}", dlerror()));
  }
  if (void* made = open_library(scratch / "program.so")) return made;
  throw UserError(
      fmt::format("{}: {} (where programs may not be run from a folder, as with the mount option "
                  "noexec, TMPDIR or STRETTO_CACHE_DIR choose another)",
                  file.string(), dlerror()));
}

// The address of a global function by its mangled name, or null.
template <typename Function>
Function find_function(void* library, const char* mangled) {
  return reinterpret_cast<Function>(dlsym(library, mangled));
}

[[noreturn]] void refuse_size(const std::string& file, const std::string& name,
                              const std::set<std::string>& asked) {
  std::string known = asked.empty() ? "it asks for none by name"
                                    : fmt::format("it has: {}", fmt::join(asked, ", "));
  throw UserError(fmt::format("{}: has no size '{}'; {}", file, name, known));
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
  if (build_shape_ != nullptr) {
    shape.asked.clear();
    Program made = build_shape_(shape);
    for (const auto& [name, size] : shape.sizes) {
      if (!shape.asked.contains(name)) refuse_size(name_, name, shape.asked);
    }
    return made;
  }
  if (shape.m > 0 || shape.n > 0 || shape.k > 0 || !shape.sizes.empty()) {
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
