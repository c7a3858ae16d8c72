// For tests: PCRE2 as the judge of regular expressions.
#pragma once
#include <memory>
#include <string>

namespace quire::grammar {

class RegexJudge {
 public:
  explicit RegexJudge(const std::string& regex);  // throws std::runtime_error for what PCRE2 refuses
  ~RegexJudge();

  bool matches(const std::string& text) const;  // as a whole
  bool begins(const std::string& text) const;   // it matches, or is the beginning of a text that does

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace quire::grammar
