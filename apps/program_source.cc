#include "apps/program_source.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/ir/parser.h"
#include "stretto/ops/catalog/catalog.h"

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
void run_compiler(const fs::path& file, const std::string& arguments, const fs::path& output) {
  fs::path messages = output.string() + ".log";
  const char* compiler = std::getenv("CXX");
  std::string command = fmt::format("{} -std=c++20 -O0 -fPIC -I{} {} {} -o {} 2> {}",
                                    compiler ? compiler : "c++", quote(STRETTO_INCLUDE_DIR),
                                    arguments, quote(file), quote(output), quote(messages));
  int status = std::system(command.c_str());
  std::string said = fs::exists(messages) ? read_file(messages, kMaxProgramBytes) : "";
  fs::remove(messages);
  if (status == 0) return;
  fs::remove(output);
  throw UserError(fmt::format("{}: does not compile:\n{}", file.string(), said.substr(0, 4000)));
}

// Compiles the file into a shared object under the cache; returns its path. The key covers every
// header that the file includes.
fs::path compile_file(const fs::path& file) {
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
  run_compiler(file, "-E", expanded);
  std::string source = read_file(expanded, kMaxExpandedBytes);
  fs::remove(expanded);
  std::size_t key = std::hash<std::string>{}(source);
  fs::path object = dir / fmt::format("{:016x}.so", key);
  if (fs::exists(object)) return object;
  run_compiler(file, "-shared", made);
  fs::rename(made, object);
  return object;
}

using BuildFunction = Program (*)(int);

BuildFunction load_file(const fs::path& file) {
  fs::path object = compile_file(file);
  void* library = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw UserError(fmt::format("{}: {}", file.string(), dlerror()));
  // The mangled name of stretto_program(int) in the global namespace.
  auto build = reinterpret_cast<BuildFunction>(dlsym(library, "_Z15stretto_programi"));
  if (build == nullptr) {
    throw UserError(fmt::format("{}: defines no 'stretto::Program stretto_program(int world_size)'",
                                file.string()));
  }
  return build;
}

std::string operator_names() {
  std::string names;
  for (const OperatorInfo& op : catalog()) names += fmt::format(" {}", op.name);
  return names;
}

}  // namespace

std::string to_string(const OpShape& shape) {
  return fmt::format("m={} n={} k={} {} P={}", shape.m, shape.n, shape.k, short_name(shape.dtype),
                     shape.world_size);
}

ProgramSource::ProgramSource(const std::string& text) : text_(text), op_(find_operator(text)) {
  if (op_ != nullptr) return;
  fs::path path(text);
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw UserError(fmt::format("'{}' is neither an operator nor a file; operators:{}", text,
                                operator_names()));
  }
  if (path.extension() == ".cc" || path.extension() == ".cpp") {
    build_ = load_file(path);
  } else {
    parsed_ = parse(read_file(path, kMaxProgramBytes), text);
  }
}

std::optional<int> ProgramSource::fixed_world_size() const {
  if (parsed_) return parsed_->world_size;
  return std::nullopt;
}

Program ProgramSource::program(const OpShape& shape) const {
  if (op_ != nullptr) return op_->program(shape);
  if (build_ != nullptr) return call_build(shape.world_size);
  if (parsed_->world_size != shape.world_size) {
    throw UserError(fmt::format("{}: is a program for {} ranks, {} asked for", text_,
                                parsed_->world_size, shape.world_size));
  }
  return *parsed_;
}

// What the user's function throws is the user's, whatever its type.
Program ProgramSource::call_build(int world_size) const {
  try {
    return build_(world_size);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw UserError(fmt::format("{}: stretto_program({}): {}", text_, world_size, e.what()));
  }
}

std::vector<NamedProgram> ProgramSource::programs(int world_size) const {
  std::vector<NamedProgram> programs;
  if (op_ == nullptr) {
    OpShape shape{.world_size = world_size};
    programs.push_back({fmt::format("{} P={}", text_, world_size), program(shape)});
    return programs;
  }
  for (const OpShape& shape : op_->shapes(world_size)) {
    programs.push_back({fmt::format("{} {}", op_->name, to_string(shape)), op_->program(shape)});
  }
  return programs;
}

RankRange parse_ranks(const std::string& text) {
  auto number = [&](std::string_view part) {
    int value = 0;
    auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value < 1 || value > 64) {
      throw UserError(fmt::format("--ranks '{}': need N or A..B with numbers from 1 to 64", text));
    }
    return value;
  };
  std::size_t dots = text.find("..");
  if (dots == std::string::npos) return {number(text), number(text)};
  RankRange range{number(std::string_view(text).substr(0, dots)),
                  number(std::string_view(text).substr(dots + 2))};
  if (range.first > range.last)
    throw UserError(fmt::format("--ranks '{}': the range is empty", text));
  return range;
}

}  // namespace stretto
