#include "serve/call_weight.h"

#include <algorithm>
#include <string_view>

namespace quire::serve {
namespace {

// Fields that bring a grammar, by their beginnings. In a text they do no harm: the call is only taken for a heavy one.
constexpr std::string_view kCompiled[] = {"\"json_schema",        "\"regex",   "\"ebnf",
                                          "\"response_format",    "\"tools\"", "\"guided_",
                                          "\"structured_outputs", "\"grammar"};

}  // namespace

Weight weight_of(const http::Request& request) {
  const std::string_view body = request.body;
  const bool heavy =
      body.size() > kMostLightBytes ||
      std::any_of(std::begin(kCompiled), std::end(kCompiled), [&](auto word) { return body.find(word) != body.npos; });
  return heavy ? Weight::heavy : Weight::light;
}

}  // namespace quire::serve
