#include "apps/load_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxTraceBytes = std::size_t{4} << 30;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

std::vector<std::string_view> cells_of(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  std::vector<std::string_view> out;
  for (;;) {
    std::size_t comma = line.find(',');
    out.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return out;
    line.remove_prefix(comma + 1);
  }
}

class TraceReader {
 public:
  explicit TraceReader(const std::string& path) : path_(path) {}

  std::vector<Arrival> read() {
    const std::string text = read_file(path_, kMaxTraceBytes);
    std::string_view rest = text;
    std::vector<Arrival> out;
    while (!rest.empty()) {
      std::size_t end = rest.find('\n');
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      ++line_;
      if (line_ == 1) {
        read_names(cells_of(line));
      } else if (!line.empty() && line != "\r") {
        out.push_back(read_row(cells_of(line)));
      }
    }
    if (out.empty()) throw UserError(fmt::format("{}: has no requests", path_));
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(fmt::format("{}:{}: {}", path_, line_, what));
  }

  void read_names(const std::vector<std::string_view>& cells) {
    auto place = [&](std::string_view name) {
      auto found = std::find(cells.begin(), cells.end(), name);
      if (found == cells.end()) fail(fmt::format("has no column '{}'", name));
      return static_cast<std::size_t>(found - cells.begin());
    };
    time_ = place("Timestamp");
    input_ = place("Request tokens");
    output_ = place("Response tokens");
    columns_ = cells.size();
  }

  Arrival read_row(const std::vector<std::string_view>& cells) const {
    if (cells.size() != columns_) {
      fail(fmt::format("has {} columns, the first line {}", cells.size(), columns_));
    }
    return {.at_s = number<double>(cells[time_], "Timestamp", 0, 1e10),
            .input_tokens = std::max<std::int64_t>(
                1, number<std::int64_t>(cells[input_], "Request tokens", 0, kMostTokens)),
            .output_tokens = std::max<std::int64_t>(
                1, number<std::int64_t>(cells[output_], "Response tokens", 0, kMostTokens))};
  }

  template <typename Number>
  Number number(std::string_view text, const char* column, Number least, Number most) const {
    Number value{};
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    bool whole = error == std::errc() && end == text.data() + text.size();
    if (!whole || !(value >= least && value <= most)) {
      fail(fmt::format("{}: need a number from {} to {}, got '{}'", column, least, most,
                       printable(text, 40)));
    }
    return value;
  }

  const std::string& path_;
  std::size_t line_ = 0, time_ = 0, input_ = 0, output_ = 0, columns_ = 0;
};

}  // namespace

std::vector<double> gamma_arrivals(std::int64_t count, double rate, double burstiness,
                                   std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(burstiness, 1 / (rate * burstiness));
  std::vector<double> out;
  double at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(at);
    at += gap(random);
  }
  return out;
}

std::vector<Arrival> read_trace(const std::string& path, std::int64_t count) {
  std::vector<Arrival> all = TraceReader(path).read();
  std::stable_sort(all.begin(), all.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_s < b.at_s; });
  if (count > 0 && std::ssize(all) > count) all.resize(static_cast<std::size_t>(count));
  double first = all.front().at_s;
  for (Arrival& a : all) a.at_s -= first;
  return all;
}

}  // namespace stretto
