#include "apps/serving_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>

#include "apps/number_checks.h"
#include "stretto/base/errors.h"
#include "stretto/base/printable.h"

namespace stretto {

std::size_t bytes_of(const std::string& option, const std::string& text) {
  constexpr std::size_t kMost = std::size_t{1} << 60;
  std::size_t bytes = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, bytes);
  std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  int shift = unit.empty() ? 0 : -1;
  for (int i = 0; i < 4; ++i) {
    if (unit == std::array{"KiB", "MiB", "GiB", "TiB"}[static_cast<std::size_t>(i)]) {
      shift = 10 * (i + 1);
    }
  }
  if (error != std::errc() || shift < 0 || bytes > kMost >> shift) {
    throw UserError(fmt::format("{}: {}: need a number of bytes, as 2097152, 2MiB or 4GiB", option,
                                printable(text)));
  }
  return bytes << shift;
}

void add_step_options(CLI::App* command, StepOptions& options) {
  ServingOptions& serving = options.serving;
  command
      ->add_option("--max-model-len", serving.max_model_len,
                   "most tokens of a prompt with its answer; 0: the model's")
      ->check(non_negative())
      ->capture_default_str();
  command->add_option("--max-num-seqs", serving.max_num_seqs, "most requests that run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--max-num-batched-tokens", serving.max_num_batched_tokens,
                   "most tokens of a step, of all requests that run; at least --max-num-seqs")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command
      ->add_option(
          "--kv-memory", options.kv_memory,
          "bytes of the cache on all ranks, as 2MiB or 4GiB; 0: the smaller of 4 GiB and a "
          "quarter of the memory that is available, on GPUs what weights and steps leave")
      ->capture_default_str();
  command->add_flag("--async-scheduling,!--no-async-scheduling", serving.ahead,
                    "decide each step while the one before runs, whose tokens stay on the device; "
                    "answers are the same; default: on GPUs");
  command->add_flag("--fastest", serving.fastest,
                    "let the last bits of an answer depend on who else is served, where that is "
                    "faster: on GPUs a request that runs alone");
}

void read_step_options(StepOptions& options) {
  options.serving.kv_bytes = bytes_of("--kv-memory", options.kv_memory);
}

}  // namespace stretto
