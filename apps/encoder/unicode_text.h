// What the tokenizer needs to know about Unicode, on top of utf8proc.
#pragma once

#include <string>
#include <string_view>

namespace headwise::encoder {

std::u32string decode_utf8(std::string_view valid_text);
void append_utf8(std::string& text, char32_t c);

bool is_space(char32_t c);        // tab, line ends and Unicode's separators
bool is_control(char32_t c);      // what BERT drops: Cc, Cf, Co, but not tab and line ends
bool is_punctuation(char32_t c);  // Unicode's, and every ASCII sign such as $ and ~
bool is_cjk(char32_t c);          // an ideograph, which BERT makes a word of its own
bool is_accent(char32_t c);       // a nonspacing mark

char32_t simple_lower(char32_t c);

// Appends the canonical decomposition of c.
void append_decomposed(std::u32string& text, char32_t c);

}  // namespace headwise::encoder
