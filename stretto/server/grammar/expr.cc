#include "stretto/server/grammar/expr.h"

#include <algorithm>

namespace stretto::grammar {
namespace {

ExprPtr make(Expr expr) { return std::make_shared<const Expr>(std::move(expr)); }

void spell(const Expr& expr, std::string& out) {
  out += static_cast<char>('a' + static_cast<int>(expr.kind));
  if (expr.kind == Expr::Kind::kText) {
    out += std::to_string(expr.text.size()) + ':' + expr.text;
    return;
  }
  if (expr.kind == Expr::Kind::kBytes) {
    for (std::size_t i = 0; i < 256;) {
      std::size_t end = i + 1;
      while (end < 256 && expr.bytes[end] == expr.bytes[i]) ++end;
      if (expr.bytes[i]) out += std::to_string(i) + '-' + std::to_string(end - 1) + ',';
      i = end;
    }
    out += ';';
    return;
  }
  if (expr.kind == Expr::Kind::kRepeat || expr.kind == Expr::Kind::kMultiple) {
    out += std::to_string(expr.min) + ',' + std::to_string(expr.max) + ';';
  }
  if (expr.kind == Expr::Kind::kRule) out += std::to_string(expr.rule) + ';';
  for (const ExprPtr& part : expr.parts) spell(*part, out);
  out += '.';
}

ByteSet between(std::uint32_t low, std::uint32_t high) {
  ByteSet out;
  for (std::uint32_t byte = low; byte <= high; ++byte) out.set(byte);
  return out;
}

// Code points of one length whose bytes, each from its own range, are just [low, high]; where they
// are not, the range is cut until they are.
void add_utf8(std::uint32_t low, std::uint32_t high, std::vector<ExprPtr>& out) {
  static constexpr std::uint32_t kEnds[] = {0x7F, 0x7FF, 0xFFFF};
  for (std::uint32_t end : kEnds) {
    if (low <= end && end < high) {
      add_utf8(low, end, out);
      return add_utf8(end + 1, high, out);
    }
  }
  for (int bits = 6; bits <= 18 && high > 0x7F; bits += 6) {
    const std::uint32_t mask = (1u << bits) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_utf8(low, low | mask, out);
      return add_utf8((low | mask) + 1, high, out);
    }
    if ((high & mask) != mask) {
      add_utf8(low, (high & ~mask) - 1, out);
      return add_utf8(high & ~mask, high, out);
    }
  }
  std::string first, last;
  append_utf8(first, low);
  append_utf8(last, high);
  std::vector<ExprPtr> parts;
  for (std::size_t i = 0; i < first.size(); ++i) {
    parts.push_back(
        bytes(between(static_cast<unsigned char>(first[i]), static_cast<unsigned char>(last[i]))));
  }
  out.push_back(sequence(std::move(parts)));
}

}  // namespace

ExprPtr text(std::string_view bytes) { return make({.text = std::string(bytes)}); }
ExprPtr bytes(const ByteSet& set) { return make({.kind = Expr::Kind::kBytes, .bytes = set}); }

ExprPtr sequence(std::vector<ExprPtr> parts) {
  if (parts.size() == 1) return parts.front();
  return make({.kind = Expr::Kind::kSequence, .parts = std::move(parts)});
}

ExprPtr choice(std::vector<ExprPtr> parts) {
  if (parts.size() == 1) return parts.front();
  return make({.kind = Expr::Kind::kChoice, .parts = std::move(parts)});
}

ExprPtr repeat(ExprPtr part, int min, int max) {
  return make({.kind = Expr::Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}

ExprPtr both(ExprPtr a, ExprPtr b) {
  return make({.kind = Expr::Kind::kBoth, .parts = {std::move(a), std::move(b)}});
}

ExprPtr but_not(ExprPtr a, ExprPtr b) {
  return make({.kind = Expr::Kind::kButNot, .parts = {std::move(a), std::move(b)}});
}

ExprPtr multiple(int divisor, int places) {
  return make({.kind = Expr::Kind::kMultiple, .min = divisor, .max = places});
}

ExprPtr terminal(ExprPtr part) {
  return make({.kind = Expr::Kind::kTerminal, .parts = {std::move(part)}});
}

ExprPtr rule(int index) { return make({.kind = Expr::Kind::kRule, .rule = index}); }

std::string spelling(const Expr& expr) {
  std::string out;
  spell(expr, out);
  return out;
}

CodePoints normalized(CodePoints set) {
  std::sort(set.begin(), set.end());
  CodePoints joined;
  for (const auto& [low, high] : set) {
    if (!joined.empty() && low <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, high);
    } else {
      joined.emplace_back(low, high);
    }
  }
  return common(joined, {{0, 0xD7FF}, {0xE000, kLastCodePoint}});
}

CodePoints complement(const CodePoints& set) {
  CodePoints out;
  std::uint32_t next = 0;
  for (const auto& [low, high] : normalized(set)) {
    if (low > next) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kLastCodePoint) out.emplace_back(next, kLastCodePoint);
  return normalized(std::move(out));
}

CodePoints common(const CodePoints& a, const CodePoints& b) {
  CodePoints out;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::uint32_t low = std::max(a[i].first, b[j].first);
    const std::uint32_t high = std::min(a[i].second, b[j].second);
    if (low <= high) out.emplace_back(low, high);
    a[i].second < b[j].second ? ++i : ++j;
  }
  return out;
}

ExprPtr utf8(const CodePoints& set) {
  std::vector<ExprPtr> parts;
  for (const auto& [low, high] : set) add_utf8(low, high, parts);
  // Single bytes as one set.
  ByteSet single;
  std::vector<ExprPtr> out;
  for (ExprPtr& part : parts) {
    if (part->kind == Expr::Kind::kBytes) {
      single |= part->bytes;
    } else {
      out.push_back(std::move(part));
    }
  }
  if (single.any()) out.insert(out.begin(), bytes(single));
  return choice(std::move(out));
}

void append_utf8(std::string& out, std::uint32_t c) {
  auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6)), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12)), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18)), put(0x80 | ((c >> 12) & 0x3F)), put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

}  // namespace stretto::grammar
