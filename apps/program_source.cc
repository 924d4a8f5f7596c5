#include "apps/program_source.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
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

std::string quote(const fs::path& path) {
  std::string text = "'";
  for (char c : path.string()) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// Every header that a program file may include: a program compiled against others does not load.
std::string language_headers() {
  std::vector<fs::path> headers;
  for (const char* folder : {"base", "ir", "lang"}) {
    for (const auto& entry :
         fs::directory_iterator(fs::path(STRETTO_INCLUDE_DIR) / "stretto" / folder)) {
      if (entry.path().extension() == ".h") headers.push_back(entry.path());
    }
  }
  std::sort(headers.begin(), headers.end());
  std::string text;
  for (const fs::path& header : headers) text += read_file(header, kMaxProgramBytes);
  return text;
}

// Compiles the file into a shared object under the cache; returns its path.
fs::path compile_file(const fs::path& file) {
  std::string source = read_file(file, kMaxProgramBytes);
  fs::path dir = env_cache_dir() / "programs";
  fs::create_directories(dir);
  std::size_t key = std::hash<std::string>{}(source + file.string() + language_headers());
  fs::path object = dir / fmt::format("{:016x}.so", key);
  if (fs::exists(object)) return object;
  fs::path made = dir / fmt::format("{:016x}.{}.tmp", key, ::getpid());
  fs::path messages = made.string() + ".log";
  const char* compiler = std::getenv("CXX");
  std::string command = fmt::format("{} -std=c++20 -O0 -shared -fPIC -I{} {} -o {} 2> {}",
                                    compiler ? compiler : "c++", quote(STRETTO_INCLUDE_DIR),
                                    quote(file), quote(made), quote(messages));
  int status = std::system(command.c_str());
  std::string said = fs::exists(messages) ? read_file(messages, kMaxProgramBytes) : "";
  fs::remove(messages);
  if (status != 0) {
    fs::remove(made);
    throw UserError(fmt::format("{}: does not compile:\n{}", file.string(), said.substr(0, 4000)));
  }
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
  if (build_ != nullptr) return build_(shape.world_size);
  if (parsed_->world_size != shape.world_size) {
    throw UserError(fmt::format("{}: is a program for {} ranks, {} asked for", text_,
                                parsed_->world_size, shape.world_size));
  }
  return *parsed_;
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
