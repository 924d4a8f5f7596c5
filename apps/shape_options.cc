#include "apps/shape_options.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

constexpr std::int64_t kMostSize = std::int64_t{1} << 24;

bool is_given(const CLI::App& command, const char* name) {
  const CLI::Option* option = command.get_option(name);
  if (option->count() == 0) return false;
  const char* inherited = std::getenv(option->get_envname().c_str());
  return inherited == nullptr || option->results().front() != inherited;
}

// A large layer's shape has every size that the operator has.
void check_sizes(const CLI::App& command, const OperatorInfo& op) {
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"--m", op.large.m}, {"--n", op.large.n}, {"--k", op.large.k}};
  for (const auto& [option, size] : sizes) {
    if (size != 0 || !is_given(command, option)) continue;
    if (command.get_option(option)->as<std::int64_t>() == 0) continue;
    throw UserError(fmt::format("{}: {} has no such size: {}", option, op.name, op.summary));
  }
}

// "heads=32"
void take_size(const std::string& text, OpShape& shape) {
  std::size_t equals = text.find('=');
  std::int64_t value = -1;
  const char* end = text.data() + text.size();
  bool read = equals != std::string::npos && equals > 0;
  if (read) {
    auto [stop, error] = std::from_chars(text.data() + equals + 1, end, value);
    read = error == std::errc() && stop == end && value >= 0 && value <= kMostSize;
  }
  if (!read) {
    throw UserError(
        fmt::format("--size '{}': need NAME=VALUE, a value from 0 to {}", text, kMostSize));
  }
  std::string name = text.substr(0, equals);
  std::map<std::string, std::int64_t*> plain = {{"m", &shape.m}, {"n", &shape.n}, {"k", &shape.k}};
  if (auto known = plain.find(name); known != plain.end()) {
    *known->second = value;
  } else {
    shape.sizes[name] = value;
  }
}

}  // namespace

void add_size_options(CLI::App* command, OpShape& shape) {
  auto size = CLI::Range(std::int64_t{0}, kMostSize);
  command->add_option("--m", shape.m, "global rows; 0: the operator's default")->check(size);
  command->add_option("--n", shape.n, "global columns; 0: the operator's default")->check(size);
  command->add_option("--k", shape.k, "global inner size; 0: the operator's default")->check(size);
  command
      ->add_option_function<std::vector<std::string>>(
          "--size",
          [&shape](const std::vector<std::string>& given) {
            for (const std::string& text : given) take_size(text, shape);
          },
          "NAME=VALUE of a size that a C++ file names")
      ->type_size(1)
      ->allow_extra_args(false);
}

void add_ranks_option(CLI::App* command, int& ranks) {
  command->add_option("--ranks", ranks, "world size")
      ->check(CLI::Range(1, 64))
      ->envname("STRETTO_RANKS")
      ->capture_default_str();
}

void check_given(const CLI::App& command, const ProgramSource& source, RankRange ranks) {
  std::string file = command.get_option("program")->results().front();
  if (auto own = source.fixed_world_size(); own && is_given(command, "--ranks")) {
    if (*own < ranks.first || *own > ranks.last) {
      throw UserError(
          fmt::format("--ranks: {} is a program for {} rank{}", file, *own, *own == 1 ? "" : "s"));
    }
  }
  if (source.has_own_shape() && is_given(command, "--dtype")) {
    throw UserError(fmt::format("--dtype: {} has types of its own", file));
  }
  if (source.op() != nullptr && command.get_option("--size")->count() > 0) {
    throw UserError(fmt::format("--size: {} is an operator; its sizes are --m, --n and --k", file));
  }
  if (source.op() != nullptr) check_sizes(command, *source.op());
}

}  // namespace stretto
