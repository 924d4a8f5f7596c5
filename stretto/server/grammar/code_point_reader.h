// A grammar's text, code point by code point, for regex.cc and gbnf.cc.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "stretto/server/grammar/budget.h"
#include "stretto/server/grammar/expr.h"

namespace stretto::grammar {

class CodePointReader {
 public:
  static constexpr std::uint32_t kEnd = 0xFFFFFFFF;

  // `what` names the text in errors.
  CodePointReader(std::string_view text, const char* what) : text_(text), what_(what) {}

  std::size_t at() const { return at_; }
  void go_to(std::size_t at) { at_ = at; }
  bool is_end() const { return at_ == text_.size(); }
  // kEnd at the end.
  std::uint32_t peek() const {
    std::size_t at = at_;
    return decode(at);
  }
  std::uint32_t take() { return decode(at_); }
  bool take_if(std::uint32_t c) {
    if (peek() != c) return false;
    take();
    return true;
  }
  bool take_if(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw GrammarError(fmt::format("{}: {}, at byte {}", what_, message, at_));
  }

  std::uint32_t hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const std::uint32_t c = take();
      if (c >= '0' && c <= '9') {
        value = value * 16 + (c - '0');
      } else if ((c | 32) >= 'a' && (c | 32) <= 'f' && c != kEnd) {
        value = value * 16 + ((c | 32) - 'a' + 10);
      } else {
        fail(fmt::format("need {} hexadecimal digits", digits));
      }
    }
    if (value > kLastCodePoint) fail("there is no such character");
    return value;
  }
  // Digits, as many as there are; nothing where there are none.
  std::optional<int> number(int most) {
    std::optional<int> out;
    for (std::uint32_t c = peek(); c >= '0' && c <= '9'; take(), c = peek()) {
      out = out.value_or(0) * 10 + static_cast<int>(c - '0');
      if (*out > most) fail(fmt::format("a number beyond {}", most));
    }
    return out;
  }

 private:
  std::uint32_t decode(std::size_t& at) const {
    if (at == text_.size()) return kEnd;
    auto byte = [&](std::size_t i) -> std::uint32_t {
      return i < text_.size() ? static_cast<unsigned char>(text_[i]) : 0u;
    };
    const std::uint32_t first = byte(at);
    const int more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    std::uint32_t out = more == 0 ? first : first & (0x3Fu >> more);
    bool is_valid = more == 0 || (first >= 0xC2 && first <= 0xF4);
    for (int i = 1; i <= more; ++i) {
      is_valid &= (byte(at + static_cast<std::size_t>(i)) & 0xC0) == 0x80;
      out = out << 6 | (byte(at + static_cast<std::size_t>(i)) & 0x3F);
    }
    static constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    is_valid &= out >= kLeast[more] && out <= kLastCodePoint && (out < 0xD800 || out > 0xDFFF);
    if (!is_valid) fail("this is no UTF-8");
    at += static_cast<std::size_t>(more) + 1;
    return out;
  }

  std::string_view text_;
  const char* what_;
  std::size_t at_ = 0;
};

}  // namespace stretto::grammar
