#include "serve/call_weight.h"

#include <algorithm>
#include <string_view>

namespace quire::serve {
namespace {

// Fields that bring a grammar, by their beginnings. In a text they do no harm: the call is only taken for a heavy one.
constexpr std::string_view kCompiled[] = {"\"json_schema",        "\"regex",   "\"ebnf",
                                          "\"response_format",    "\"tools\"", "\"guided_",
                                          "\"structured_outputs", "\"grammar"};

// Field names are ASCII letters, and JSON can write a letter as its number: "\u0065bnf" is ebnf. No encoder does that,
// so whoever does hides something.
bool has_escaped_letter(std::string_view body) {
  constexpr std::string_view kAscii = "\\u00";
  for (size_t at = body.find(kAscii); at != body.npos; at = body.find(kAscii, at + 1)) {
    const char row = at + kAscii.size() < body.size() ? body[at + kAscii.size()] : '\0';
    if (row >= '4' && row <= '7') return true;
  }
  return false;
}

}  // namespace

Weight weight_of(const http::Request& request) {
  const std::string_view body = request.body;
  const bool heavy =
      body.size() > kMostLightBytes || has_escaped_letter(body) ||
      std::any_of(std::begin(kCompiled), std::end(kCompiled), [&](auto word) { return body.find(word) != body.npos; });
  return heavy ? Weight::heavy : Weight::light;
}

}  // namespace quire::serve
