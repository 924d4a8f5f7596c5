#include "stretto/model/tokenizer/unicode_normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/model/tokenizer/utf8.h"

namespace stretto::tokenization {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Code points newer than Unicode 9.0 that utf8proc 2.8 (Unicode 15.0) decomposes, reorders or
// composes. They pass unchanged, and nothing moves across them, because the reference takes them
// for unassigned starters.
constexpr auto kNewerThanReference = std::to_array<Range>({
    {0x007FD, 0x007FD}, {0x00898, 0x0089F}, {0x008CA, 0x008D3}, {0x009FE, 0x009FE},
    {0x00C3C, 0x00C3C}, {0x00D3B, 0x00D3C}, {0x00EBA, 0x00EBA}, {0x01715, 0x01715},
    {0x01ABF, 0x01ACE}, {0x01DF6, 0x01DFA}, {0x032FF, 0x032FF}, {0x0A7F2, 0x0A7F4},
    {0x0A82C, 0x0A82C}, {0x0AB69, 0x0AB69}, {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
});

bool is_newer_than_reference(char32_t code_point) {
  if (code_point < kNewerThanReference.front().first) return false;
  const auto after =
      std::upper_bound(kNewerThanReference.begin(), kNewerThanReference.end(), code_point,
                       [](char32_t c, const Range& range) { return c < range.first; });
  return after != kNewerThanReference.begin() && code_point <= (after - 1)->last;
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// utf8proc's own reordering is quadratic in the length of a run of marks; a stable sort is not.
void reorder_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
  auto at = code_points.begin();
  while ((at = std::find_if(at, code_points.end(), is_mark)) != code_points.end()) {
    const auto end = std::find_if_not(at, code_points.end(), is_mark);
    std::stable_sort(at, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    at = end;
  }
}

class NormalSegment {
 public:
  explicit NormalSegment(NormalForm form)
      : composes_(form == NormalForm::kNfc || form == NormalForm::kNfkc),
        options_(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE) {
    if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options_ |= UTF8PROC_COMPAT;
  }

  void add(char32_t code_point) {
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition has 18 code points
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), parts.data(),
                                parts.size(), option(options_), &boundary);
    STRETTO_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
                  "decomposition of a valid code point");
    code_points_.insert(code_points_.end(), parts.begin(), parts.begin() + count);
  }

  void flush(std::string& out) {
    if (code_points_.empty()) return;
    reorder_marks(code_points_);
    if (composes_) {
      const auto count = utf8proc_normalize_utf32(
          code_points_.data(), static_cast<utf8proc_ssize_t>(code_points_.size()),
          option(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      STRETTO_CHECK(count >= 0, "composition of valid code points");
      code_points_.resize(static_cast<std::size_t>(count));
    }
    for (const utf8proc_int32_t c : code_points_) append_utf8(out, static_cast<char32_t>(c));
    code_points_.clear();
  }

 private:
  static utf8proc_option_t option(int bits) { return static_cast<utf8proc_option_t>(bits); }

  bool composes_;
  int options_;
  std::vector<utf8proc_int32_t> code_points_;
};

}  // namespace

std::string normalize(std::string_view text, NormalForm form) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  NormalSegment segment(form);
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (is_newer_than_reference(step.code_point)) {
      segment.flush(out);
      out += text.substr(0, step.length);
    } else {
      segment.add(step.code_point);
    }
    text.remove_prefix(step.length);
  }
  segment.flush(out);
  return out;
}

}  // namespace stretto::tokenization
