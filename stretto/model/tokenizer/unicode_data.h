// Character classes of Unicode 16.0, as the tokenizers that checkpoints are published with see
// them. The system's utf8proc may be older; a table of what was added since then closes the gap.
// Used by the regular expressions
// (\p{L} and its kin), the Digits pre-tokenizer, added tokens and the Lowercase normaliser.
#pragma once

#include <string>
#include <string_view>

namespace stretto::tokenization {

// Two letters, e.g. "Lu"; "Cn" for unassigned code points.
std::string_view general_category(char32_t code_point);

bool is_whitespace(char32_t code_point);  // property White_Space
bool is_numeric(char32_t code_point);     // categories Nd, Nl, No
bool is_word(char32_t code_point);        // \w of Unicode Technical Standard 18, annex C

// Full lower-case mapping of one code point, without context (no final sigma).
void append_lowercase(std::string& out, char32_t code_point);

}  // namespace stretto::tokenization
