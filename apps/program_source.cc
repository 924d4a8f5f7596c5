#include "apps/program_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/verifier.h"
#include "stretto/ops/catalog/catalog.h"

namespace stretto {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxProgramBytes = std::size_t{16} << 20;

// The headers of the installation that this command belongs to, else those it was built from.
fs::path include_dir() {
  std::error_code error;
  fs::path installed = fs::read_symlink("/proc/self/exe", error).parent_path() / "../include";
  if (error) return STRETTO_INCLUDE_DIR;  // no /proc
  return fs::exists(installed / "stretto/lang/program_builder.h", error)
             ? installed
             : fs::path(STRETTO_INCLUDE_DIR);
}

// As compilers tell C++ files.
bool is_cpp(const fs::path& path) {
  constexpr const char* kSuffixes[] = {".cc", ".cpp", ".cxx", ".c++", ".cp",
                                       ".C",  ".CPP", ".CC",  ".CXX"};
  return std::find(std::begin(kSuffixes), std::end(kSuffixes), path.extension()) !=
         std::end(kSuffixes);
}

// What does not begin as the text form does may be C++ in a file of another suffix.
Program parse_text(const fs::path& path, const std::string& name) {
  std::string text = read_file(path, kMaxProgramBytes);
  try {
    Program program = parse(text, name);
    verify(program);
    return program;
  } catch (const UserError& e) {
    if (text.find("stretto_program") == std::string::npos) throw;
    throw UserError(
        fmt::format("{} (read as a program's text form; a C++ file's name ends in .cc, "
                    ".cpp or .cxx)",
                    e.what()));
  }
}

std::string operator_names() {
  std::string names;
  for (const OperatorInfo& op : catalog()) names += fmt::format(" {}", op.name);
  return names;
}

}  // namespace

std::string to_string(const OpShape& shape) {
  std::string sizes;
  for (auto [name, size] : {std::pair{'m', shape.m}, {'n', shape.n}, {'k', shape.k}}) {
    if (size > 0) sizes += fmt::format("{}={} ", name, size);
  }
  for (const auto& [name, size] : shape.sizes) sizes += fmt::format("{}={} ", name, size);
  return fmt::format("{}{} P={}", sizes, short_name(shape.dtype), shape.world_size);
}

std::string rows_note(const OpShape& asked, const Program& program) {
  for (const Var& var : program.vars) {
    if (var.kind != VarKind::kExtent || var.name != "m") continue;
    if (asked.m == 0 || var.bound <= asked.m) return "";
    return fmt::format(", m={} is the next after {} that programs are made for", var.bound,
                       asked.m);
  }
  return "";
}

bool has_sizes(const OpShape& shape) {
  return shape.m > 0 || shape.n > 0 || shape.k > 0 || !shape.sizes.empty();
}

ProgramSource::ProgramSource(const std::string& text) : text_(text), op_(find_operator(text)) {
  if (op_ != nullptr) return;
  fs::path path(text);
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw UserError(fmt::format("'{}' is neither an operator nor a file; operators:{}", text,
                                operator_names()));
  }
  if (is_cpp(path)) {
    file_.emplace(path, include_dir());
  } else {
    parsed_ = parse_text(path, text);
  }
}

std::optional<int> ProgramSource::fixed_world_size() const {
  if (parsed_) return parsed_->world_size;
  return std::nullopt;
}

bool ProgramSource::has_own_shape() const {
  return parsed_.has_value() || (file_ && !file_->takes_shape());
}

Program ProgramSource::program(const OpShape& shape) const {
  if (op_ != nullptr) return op_->program(shape);
  if (file_) {
    return file_->program({.world_size = shape.world_size,
                           .m = shape.m,
                           .n = shape.n,
                           .k = shape.k,
                           .sizes = shape.sizes,
                           .dtype = shape.dtype,
                           .num_sms = shape.target == Target::kCuda ? shape.target.sms() : 0});
  }
  if (has_sizes(shape)) throw UserError(fmt::format("{}: has sizes of its own", text_));
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
