// The four Unicode normalisation forms (Unicode Standard Annex 15) over valid UTF-8, at the level
// of Unicode 9.0: the reference library's tables stop there, so later code points neither
// decompose, compose nor reorder. Linear in the text also for hostile runs of combining marks.
#pragma once

#include <string>
#include <string_view>

namespace stretto::tokenization {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

std::string normalize(std::string_view text, NormalForm form);

}  // namespace stretto::tokenization
