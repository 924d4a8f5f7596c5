#include "stretto/server/grammar/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "stretto/base/json_fields.h"

namespace stretto::grammar {
namespace {

ByteSet byte_range(char low, char high) {
  ByteSet out;
  for (int c = low; c <= high; ++c) out.set(static_cast<std::size_t>(c));
  return out;
}

ExprPtr digits(char low = '0', char high = '9') {
  return low > high ? choice({}) : bytes(byte_range(low, high));
}

ExprPtr hex() { return bytes(byte_range('0', '9') | byte_range('a', 'f') | byte_range('A', 'F')); }

ByteSet bytes_of(std::string_view text) {
  ByteSet out;
  for (char c : text) out.set(static_cast<unsigned char>(c));
  return out;
}

// Whole numbers of as many digits, at least or at most `bound`; zeros may come first.
ExprPtr same_length(std::string_view bound, bool at_least) {
  if (bound.empty()) return text("");
  const char d = bound.front();
  const int rest = static_cast<int>(bound.size()) - 1;
  ExprPtr other =
      at_least ? digits(static_cast<char>(d + 1)) : digits('0', static_cast<char>(d - 1));
  return choice({sequence({text(bound.substr(0, 1)), same_length(bound.substr(1), at_least)}),
                 sequence({std::move(other), repeat(digits(), rest, rest)})});
}

ExprPtr whole() { return choice({text("0"), sequence({digits('1'), repeat(digits(), 0, -1)})}); }

ExprPtr whole_at_least(const std::string& bound) {
  const int size = static_cast<int>(bound.size());
  return both(whole(), choice({same_length(bound, true),
                               sequence({digits('1'), repeat(digits(), size, -1)})}));
}

ExprPtr whole_at_most(const std::string& bound) {
  const int size = static_cast<int>(bound.size());
  return both(whole(), choice({same_length(bound, false), repeat(digits(), 0, size - 1)}));
}

std::string plus_one(std::string number) {
  for (std::size_t i = number.size(); i-- > 0;) {
    if (number[i] != '9') return ++number[i], number;
    number[i] = '0';
  }
  return "1" + number;
}

// Of one that is not 0.
std::string minus_one(std::string number) {
  for (std::size_t i = number.size(); i-- > 0;) {
    if (number[i] != '0') {
      --number[i];
      break;
    }
    number[i] = '9';
  }
  const std::size_t first = number.find_first_not_of('0');
  return first == number.npos ? "0" : number.substr(first);
}

// A fraction after the point, compared with that of a bound: digits, at least one.
ExprPtr fraction_digits(std::string_view bound, bool at_least, bool is_equal_fine) {
  if (bound.empty()) {  // zeros are equal to it, everything else is above
    ExprPtr zeros = repeat(text("0"), 0, -1);
    ExprPtr above = sequence({repeat(text("0"), 0, -1), digits('1'), repeat(digits(), 0, -1)});
    std::vector<ExprPtr> out;
    if (is_equal_fine) out.push_back(std::move(zeros));
    if (at_least) out.push_back(std::move(above));
    return choice(std::move(out));
  }
  const char d = bound.front();
  ExprPtr other =
      at_least ? digits(static_cast<char>(d + 1)) : digits('0', static_cast<char>(d - 1));
  std::vector<ExprPtr> out = {sequence({text(bound.substr(0, 1)),
                                        fraction_digits(bound.substr(1), at_least, is_equal_fine)}),
                              sequence({std::move(other), repeat(digits(), 0, -1)})};
  if (!at_least) out.push_back(text(""));  // what ends is below
  return choice(std::move(out));
}

// Numbers without sign on one side of a bound.
ExprPtr decimals(const Decimal& bound, bool at_least, bool is_equal_fine) {
  const ExprPtr fraction = sequence({text("."), repeat(digits(), 1, -1)});
  std::vector<ExprPtr> out;
  if (at_least) {
    out.push_back(sequence({whole_at_least(plus_one(bound.whole)), optional(fraction)}));
  } else if (bound.whole != "0") {
    out.push_back(sequence({whole_at_most(minus_one(bound.whole)), optional(fraction)}));
  }
  const ExprPtr near = both(
      sequence({text("."), fraction_digits(bound.fraction, at_least, is_equal_fine)}), fraction);
  const bool whole_is_fine = bound.fraction.empty() ? is_equal_fine : !at_least;
  out.push_back(sequence({text(bound.whole), whole_is_fine ? optional(near) : near}));
  return choice(std::move(out));
}

ExprPtr anything() { return repeat(bytes(ByteSet().set()), 0, -1); }

}  // namespace

ExprPtr json_space(bool is_compact) {
  if (is_compact) return text("");
  return terminal(optional(choice(
      {text(" "), sequence({repeat(text("\n"), 1, 2), repeat(bytes(bytes_of(" \t")), 0, 20)})})));
}

ExprPtr json_characters(const CodePoints& set) {
  const CodePoints plain = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastCodePoint}};
  std::vector<ExprPtr> out = {utf8(common(set, plain))};
  auto has = [&](std::uint32_t c) { return !common(set, {{c, c}}).empty(); };
  static constexpr std::string_view kShort = "\"\"\\\\\bb\ff\nn\rr\tt";
  for (std::size_t i = 0; i < kShort.size(); i += 2) {
    if (has(static_cast<unsigned char>(kShort[i]))) {
      out.push_back(text(std::string("\\") + kShort[i + 1]));
    }
  }
  for (std::uint32_t c = 0; c < 0x20; ++c) {
    if (has(c) && kShort.find(static_cast<char>(c)) == kShort.npos) {
      out.push_back(text(fmt::format("\\u{:04x}", c)));
    }
  }
  return choice(std::move(out));
}

ExprPtr json_plain_character() {
  static const ExprPtr made = json_characters(complement({}));
  return made;
}

ExprPtr json_any_character() {
  const ExprPtr h = hex();
  auto set = [](std::string_view chars) { return bytes(bytes_of(chars)); };
  static const ExprPtr made =
      choice({utf8({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, kLastCodePoint}}),
              sequence({text("\\"), set("\"\\/bfnrt")}),
              sequence({text("\\u"), set("0123456789abcefABCEF"), h, h, h}),
              sequence({text("\\u"), set("dD"), set("01234567"), h, h}),
              sequence({text("\\u"), set("dD"), set("89abAB"), h, h, text("\\u"), set("dD"),
                        set("cdefCDEF"), h, h})});
  return made;
}

ExprPtr json_string(ExprPtr content) {
  return terminal(sequence({text("\""), std::move(content), text("\"")}));
}

std::string json_quoted(std::string_view text) { return nlohmann::json(text).dump(); }

Decimal Decimal::of(const Json& number) {
  constexpr int kMostDigits = 60;
  std::string all =
      number.is_number_float() ? fmt::format("{}", number.get<double>()) : number.dump();
  Decimal out;
  out.is_negative = all.starts_with('-');
  if (out.is_negative) all.erase(0, 1);
  int exponent = 0;
  if (const std::size_t e = all.find('e'); e != all.npos) {
    exponent = std::stoi(all.substr(e + 1));
    all.resize(e);
  }
  const std::size_t point = std::min(all.find('.'), all.size());
  std::string digits = all.substr(0, point) + (point < all.size() ? all.substr(point + 1) : "");
  int where = static_cast<int>(point) + exponent;  // of the point in `digits`
  if (where > kMostDigits || where < -kMostDigits) {
    throw GrammarError("the bound " + quote_json(number) + " has too many digits");
  }
  if (where < 0) digits.insert(0, static_cast<std::size_t>(-where), '0'), where = 0;
  if (where > static_cast<int>(digits.size())) digits.resize(static_cast<std::size_t>(where), '0');
  out.whole = digits.substr(0, static_cast<std::size_t>(where));
  out.fraction = digits.substr(static_cast<std::size_t>(where));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  if (out.whole.empty()) out.whole = "0";
  out.fraction.resize(out.fraction.find_last_not_of('0') + 1);
  if (out.whole == "0" && out.fraction.empty()) out.is_negative = false;
  return out;
}

void check_multiple(const Decimal& divisor) {
  constexpr std::size_t kMostDigits = 6;
  constexpr int kMostStates = 20'000;
  const std::size_t places = divisor.fraction.size();
  if (divisor.whole.size() + places > kMostDigits ||
      std::stoi(divisor.whole + divisor.fraction) * static_cast<int>(places + 3) > kMostStates) {
    throw GrammarError("a divisor of so many digits is not supported");
  }
}

namespace {

ExprPtr multiples(ExprPtr numbers, const NumberBounds& bounds) {
  if (!bounds.multiple) return terminal(std::move(numbers));
  const Decimal& divisor = *bounds.multiple;
  return terminal(
      both(std::move(numbers),
           sequence({optional(text("-")), multiple(std::stoi(divisor.whole + divisor.fraction),
                                                   static_cast<int>(divisor.fraction.size()))})));
}

}  // namespace

ExprPtr json_integer(const NumberBounds& bounds) {
  if (!bounds.any()) return multiples(sequence({optional(text("-")), whole()}), bounds);
  // Without sign, and with: both from their own least to their own most.
  std::optional<ExprPtr> least, most, negative_least, negative_most;
  bool has_positive = true, has_negative = true;
  if (bounds.min) {
    const Decimal& m = *bounds.min;
    const bool beyond = !m.is_whole() || bounds.excludes_min;
    if (!m.is_negative) {
      has_negative = false;
      least = whole_at_least(beyond ? plus_one(m.whole) : m.whole);
    } else if (m.is_whole() && bounds.excludes_min) {
      negative_most = whole_at_most(minus_one(m.whole));
    } else {
      negative_most = whole_at_most(m.whole);
    }
  }
  if (bounds.max) {
    const Decimal& m = *bounds.max;
    const bool beyond = !m.is_whole() || bounds.excludes_max;
    if (m.is_negative) {
      has_positive = false;
      negative_least = whole_at_least(beyond ? plus_one(m.whole) : m.whole);
    } else if (m.is_whole() && bounds.excludes_max) {
      if (m.whole == "0")
        has_positive = false;
      else
        most = whole_at_most(minus_one(m.whole));
    } else {
      most = whole_at_most(m.whole);
    }
  }
  auto within = [](const std::optional<ExprPtr>& a, const std::optional<ExprPtr>& b) {
    return both(a.value_or(anything()), both(b.value_or(anything()), whole()));
  };
  std::vector<ExprPtr> out;
  if (has_positive) out.push_back(within(least, most));
  if (has_negative) {
    out.push_back(
        sequence({text("-"), both(within(negative_least, negative_most), whole_at_least("1"))}));
  }
  return multiples(choice(std::move(out)), bounds);
}

ExprPtr json_number(const NumberBounds& bounds) {
  const ExprPtr fraction = sequence({text("."), repeat(digits(), 1, -1)});
  const ExprPtr plain = sequence({whole(), optional(fraction)});
  if (!bounds.any()) {
    const ExprPtr exponent =
        sequence({bytes(bytes_of("eE")), optional(bytes(bytes_of("+-"))), repeat(digits(), 1, 2)});
    return multiples(sequence({optional(text("-")), plain, optional(exponent)}), bounds);
  }
  std::vector<ExprPtr> positive = {plain}, negative = {plain};
  if (bounds.min) {
    Decimal m = *bounds.min;
    if (m.is_negative) {
      negative.push_back(decimals(m, false, !bounds.excludes_min));
    } else {
      positive.push_back(decimals(m, true, !bounds.excludes_min));
      negative.push_back(choice({}));
    }
  }
  if (bounds.max) {
    Decimal m = *bounds.max;
    if (m.is_negative) {
      negative.push_back(decimals(m, true, !bounds.excludes_max));
      positive.push_back(choice({}));
    } else {
      positive.push_back(decimals(m, false, !bounds.excludes_max));
      // Minus nought is not below nought.
      negative.push_back(decimals({}, true, false));
    }
  }
  auto all = [](const std::vector<ExprPtr>& parts) {
    ExprPtr out = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) out = both(out, parts[i]);
    return out;
  };
  return multiples(choice({all(positive), sequence({text("-"), all(negative)})}), bounds);
}

}  // namespace stretto::grammar
