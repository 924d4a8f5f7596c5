#include "apps/shape_options.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

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

}  // namespace

void add_size_options(CLI::App* command, OpShape& shape) {
  auto size = CLI::Range(std::int64_t{0}, std::int64_t{1} << 24);
  command->add_option("--m", shape.m, "global rows; 0: the operator's default")->check(size);
  command->add_option("--n", shape.n, "global columns; 0: the operator's default")->check(size);
  command->add_option("--k", shape.k, "global inner size; 0: the operator's default")->check(size);
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
  if (source.op() != nullptr) check_sizes(command, *source.op());
}

}  // namespace stretto
