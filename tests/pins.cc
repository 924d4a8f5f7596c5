// Pins what every shipped config becomes, so that a change which should change nothing shows where
// it did: `pins` prints a line for each, `pins FILE` compares with one. tests/data/pins.txt is what
// the last intended change left: build/bin/pins > tests/data/pins.txt.
//
// A line: the config, then what its readers make of it: hashes of its tile program, its scheduled
// program, its instances and its kernel (- where there is none), and its predicted microseconds.
// Hashes are of texts without places in source files, every name replaced by its number in order of
// appearance: a change of names alone leaves them.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/codegen/kernel.h"
#include "stretto/ir/printer.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/passes/pipeline.h"
#include "stretto/predict/prediction.h"
#include "stretto/proof/content_hash.h"
#include "stretto/proof/print_instances.h"

namespace stretto {
namespace {

constexpr int kFields = 5;      // of a line behind its config
constexpr int kMostShown = 20;  // differences

bool begins_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool in_name(char c) { return begins_name(c) || std::isdigit(static_cast<unsigned char>(c)); }

// Without loc("file":line), and without the file:line at the end of a line.
std::string without_places(const std::string& text) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    for (std::size_t loc; (loc = line.find(" loc(\"")) != std::string::npos;) {
      line.erase(loc, line.find(')', loc) - loc + 1);
    }
    std::size_t colon = line.rfind(':');
    if (colon != std::string::npos && colon + 1 < line.size() &&
        line.find_first_not_of("0123456789", colon + 1) == std::string::npos) {
      std::size_t file = line.find_last_of(" \"", colon);
      if (file != std::string::npos && line.find('.', file) < colon) line.erase(file);
    }
    out += line + '\n';
    at = end + 1;
  }
  return out;
}

std::string with_numbered_names(const std::string& text) {
  std::string out;
  std::map<std::string, std::size_t> numbers;
  for (std::size_t at = 0; at < text.size();) {
    if (!begins_name(text[at])) {
      out += text[at++];
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && in_name(text[end])) ++end;
    auto [found, fresh] = numbers.emplace(text.substr(at, end - at), numbers.size());
    out += fmt::format("n{}", found->second);
    at = end;
  }
  return out;
}

std::string pin_of(const std::string& text) {
  return content_hash(with_numbered_names(without_places(text))).substr(0, 10);
}

// What `read` makes of a program, or the kind of its refusal.
template <typename Read>
std::string pin_or_error(Read read) {
  try {
    return read();
  } catch (const Error& e) {
    return "refused:" + pin_of(e.what());
  }
}

std::string predicted_us(const OperatorInfo& op, const OpShape& shape, const Lowered& schedule) {
  static const predict::Machine machine = predict::find_machine("h200x4");
  predict::PredictOptions options;
  if (op.tables) options.timetable.tables = op.tables(shape);
  return fmt::format("{:.3f}", predict::predict(schedule, machine, options).time_ms * 1e3);
}

std::string line_of(const OperatorInfo& op, const OpShape& shape, bool small) {
  const bool cuda = shape.target == Target::kCuda;
  std::string out =
      fmt::format("{} {}x{}x{} {} P{} {}{}", op.name, shape.m, shape.n, shape.k, name(shape.dtype),
                  shape.world_size, cuda ? "cuda" : "cpu", shape.test_config ? " test" : "");
  Program program = op.program(shape);
  out += ' ' + pin_of(print(program));
  const Lowered lowered = lower(std::move(program));
  program = lowered.program();
  out += ' ' + pin_of(print(program));
  out += ' ' + (!small ? "-" : pin_or_error([&] {
           return pin_of(print_instances(program, extent_bounds(program)));
         }));
  out +=
      ' ' + (!cuda ? "-" : pin_or_error([&] { return pin_of(generate_kernel(program).source); }));
  return out + ' ' + pin_or_error([&] { return predicted_us(op, shape, lowered); });
}

std::vector<std::string> all_lines() {
  std::vector<std::string> lines;
  for (const OperatorInfo& op : catalog()) {
    for (int ranks : {1, 2, 4}) {
      std::vector<OpShape> shapes = op.shapes(ranks);
      const std::size_t num_small = shapes.size();
      shapes.push_back(op.large);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        for (Target target : {Target::kCpu, Target::kCuda}) {
          if (i == num_small && target == Target::kCpu) continue;  // a GPU's size
          shapes[i].world_size = ranks;
          shapes[i].target = target;
          lines.push_back(line_of(op, shapes[i], i < num_small));
        }
      }
    }
  }
  return lines;
}

// Of a line, what comes before its hashes and microseconds.
std::string config_of(const std::string& line) {
  std::size_t end = line.size();
  for (int field = 0; field < kFields && end != 0; ++field) end = line.rfind(' ', end - 1);
  return line.substr(0, end);
}

// Prints what differs, config by config, first what the file has. How many differ.
int compare(const std::vector<std::string>& lines, const char* path) {
  std::ifstream file(path);
  if (!file) throw UserError(fmt::format("pins: cannot read '{}'", path));
  std::map<std::string, std::pair<std::string, std::string>> by_config;  // what it was, what it is
  for (std::string line; std::getline(file, line);) by_config[config_of(line)].first = line;
  for (const std::string& line : lines) by_config[config_of(line)].second = line;
  int differing = 0;
  for (const auto& [config, pins] : by_config) {
    const auto& [was, is] = pins;
    if (was == is) continue;
    if (++differing > kMostShown) continue;
    fmt::print("{}\n  was {}\n  is  {}\n", config,
               was.empty() ? "not there" : was.substr(config.size() + 1),
               is.empty() ? "gone" : is.substr(config.size() + 1));
  }
  fmt::print("{} lines, {} differ from {}\n", lines.size(), differing, path);
  if (differing > 0) {
    fmt::print("If the change is meant: build/bin/pins > tests/data/pins.txt, and say why.\n");
  }
  return differing;
}

}  // namespace
}  // namespace stretto

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> lines = stretto::all_lines();
    if (argc > 1) return stretto::compare(lines, argv[1]) > 0 ? 1 : 0;
    for (const std::string& line : lines) fmt::print("{}\n", line);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "pins: {}\n", e.what());
    return 2;
  }
}
