// Character classes of Unicode 16.0, as the tokenizers that checkpoints are published with see
// them. The system's utf8proc may be older; a table of what was added since then closes the gap.
// Used by the regular expressions
// (\p{L} and its kin), pre-tokenizers, added tokens and normalisers. Where the reference's own
// tables are older, its answers are given.
#pragma once

#include <string>
#include <string_view>

namespace stretto::tokenization {

// Two letters, e.g. "Lu"; "Cn" for unassigned code points.
std::string_view general_category(char32_t code_point);

bool is_whitespace(char32_t code_point);   // property White_Space
bool is_punctuation(char32_t code_point);  // ASCII's, and categories P
bool is_control(char32_t code_point);      // as BERT's normaliser has it: categories Cc, Cf, Co
bool is_accent(char32_t code_point);       // as BERT's normaliser has it: category Mn
bool is_mark(char32_t code_point);         // as StripAccents has it: categories M
bool is_numeric(char32_t code_point);      // categories Nd, Nl, No
bool is_word(char32_t code_point);         // \w of Unicode Technical Standard 18, annex C

// Full lower-case mapping of one code point, without context (no final sigma).
void append_lowercase(std::string& out, char32_t code_point);

}  // namespace stretto::tokenization
