// Unicode's four normal forms of UTF-8 text, in time linear in the text but for the sorting of long runs of marks.
#pragma once
#include <string>
#include <string_view>

namespace quire::text {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

std::string normalized(std::string_view utf8, UnicodeForm form);  // valid UTF-8 in, valid UTF-8 out

}  // namespace quire::text
