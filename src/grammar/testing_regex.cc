#include "grammar/testing_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdexcept>

namespace quire::grammar {

struct RegexJudge::Parts {
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, pcre2_code_free};
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match{nullptr, pcre2_match_data_free};

  int run(const std::string& text, uint32_t options) const {
    const auto* bytes = reinterpret_cast<PCRE2_SPTR>(text.data());
    return pcre2_match(code.get(), bytes, text.size(), 0, options, match.get(), nullptr);
  }
};

RegexJudge::RegexJudge(const std::string& regex) : parts_(std::make_unique<Parts>()) {
  const std::string whole = "\\A(?:" + regex + ")\\z";
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_BSUX;
  int error = 0;
  size_t place = 0;
  const auto* bytes = reinterpret_cast<PCRE2_SPTR>(whole.data());
  parts_->code.reset(pcre2_compile(bytes, whole.size(), kOptions, &error, &place, nullptr));
  if (!parts_->code) throw std::runtime_error("PCRE2 refuses " + regex);
  parts_->match.reset(pcre2_match_data_create_from_pattern(parts_->code.get(), nullptr));
}

RegexJudge::~RegexJudge() = default;

bool RegexJudge::matches(const std::string& text) const { return parts_->run(text, 0) >= 0; }

bool RegexJudge::begins(const std::string& text) const {
  const int result = parts_->run(text, PCRE2_PARTIAL_HARD);
  return result >= 0 || result == PCRE2_ERROR_PARTIAL;
}

}  // namespace quire::grammar
