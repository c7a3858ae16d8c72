#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <cstdint>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/refused.h"

namespace quire::text {
namespace {

std::string message_of(int error) {
  PCRE2_UCHAR text[128] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// What belongs inside brackets for \s and \w. PCRE2's own \s has U+180E too, and its \w lacks marks.
constexpr std::string_view kSpaces = "\\t-\\r\\x{85}\\p{Z}";
constexpr std::string_view kWordParts = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";

// Rewrites a pattern for PCRE2, character by character, knowing only whether it is inside brackets.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\')
        take_escape();
      else if (in_brackets_)
        take_in_brackets();
      else
        take_outside();
    }
    return std::move(out_);
  }

 private:
  char next() const { return at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0'; }
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }
  void replace_escape(std::string_view text) {
    out_ += text;
    at_ += 2;
  }
  void refuse(std::string_view what) const {
    throw CheckError(cat("the pattern ", in_quotes(pattern_), " uses ", what, ", which is not supported"));
  }

  void take_escape() {
    switch (next()) {
      case 's':
        return replace_escape(in_brackets_ ? std::string(kSpaces) : cat("[", kSpaces, "]"));
      case 'w':
        return replace_escape(in_brackets_ ? std::string(kWordParts) : cat("[", kWordParts, "]"));
      case 'S':
        if (in_brackets_) return copy(2);
        return replace_escape(cat("[^", kSpaces, "]"));
      case 'W':
        if (in_brackets_) refuse("\\W inside brackets");
        return replace_escape(cat("[^", kWordParts, "]"));
      case 'b':
      case 'B':
      case 'h':
      case 'H':
      case 'R':
      case 'X':
      case 'K':
      case 'N':
      case 'O':
      case 'Q':
      case 'E':
        return refuse(cat("\\", std::string(1, next())));
      default:
        return copy(2);
    }
  }
  void take_in_brackets() {
    const char c = pattern_[at_];
    if (c == '[') refuse("brackets inside brackets");
    if (c == '&' && next() == '&') refuse("&& inside brackets");
    if (c == ']') in_brackets_ = false;
    copy(1);
  }
  void take_outside() {
    const bool opens = pattern_[at_] == '[';
    copy(1);
    if (!opens) return;
    in_brackets_ = true;
    if (at_ < pattern_.size() && pattern_[at_] == '^') copy(1);
    if (at_ < pattern_.size() && pattern_[at_] == ']') copy(1);  // a bracket that closes nothing is itself
  }

  std::string_view pattern_;
  std::string out_;
  size_t at_ = 0;
  bool in_brackets_ = false;
};

template <auto kFree>
struct Freer {
  template <class T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>>;

constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;

Code compile(std::string_view pattern) {
  const std::string translated = Translation(pattern).run();
  const CompileContext context(pcre2_compile_context_create(nullptr));
  check(context != nullptr, "out of memory for a pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions, &error, &place,
                          context.get()));
  check(code != nullptr, "the pattern ", in_quotes(pattern), " does not compile: ", message_of(error));
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // where it cannot, matching interprets the pattern
  return code;
}

}  // namespace

struct Regex::Compiled {
  std::string pattern;
  Code code;
};

Regex::Regex(std::string_view pattern)
    : compiled_(std::make_unique<Compiled>(Compiled{std::string(pattern), compile(pattern)})) {}
Regex::Regex(Regex&&) noexcept = default;
Regex::~Regex() = default;

std::string Regex::escaped(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c))) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

struct RegexMatcher::State {
  const Regex::Compiled& regex;
  MatchData data;
};

RegexMatcher::RegexMatcher(const Regex& regex)
    : state_(std::make_unique<State>(State{
          *regex.compiled_, MatchData(pcre2_match_data_create_from_pattern(regex.compiled_->code.get(), nullptr))})) {
  check(state_->data != nullptr, "out of memory for matching a pattern");
}
RegexMatcher::RegexMatcher(RegexMatcher&&) noexcept = default;
RegexMatcher::~RegexMatcher() = default;

bool RegexMatcher::find(std::string_view text, size_t from, TextRange& match) {
  const auto run = [&](uint32_t options) {
    return pcre2_match(state_->regex.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, state_->data.get(), nullptr);
  };
  int found = run(0);
  // Compiled patterns have a small stack; the interpreter takes memory as it needs it, up to a limit.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found <= 0)
    throw Refused(cat("matching the pattern ", in_quotes(state_->regex.pattern), " failed: ", message_of(found)));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data.get());
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace quire::text
