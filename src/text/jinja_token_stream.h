// The parser's view of the tokens: the current one, the next, and what must come.
//
// Errors   CheckError with the line when the current token is not the expected one.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_token.h"

namespace quire::text::jinja {

std::string describe(const Token& token);  // for messages

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_symbol(std::string_view symbol) const { return current().is_symbol(symbol); }
  bool at_name(std::string_view name) const { return current().is_name(name); }

  Token next() {
    Token token = current();
    if (token.kind != TokenKind::end) ++at_;
    return token;
  }
  bool skip_symbol(std::string_view symbol) { return skip_if(at_symbol(symbol)); }
  bool skip_name(std::string_view name) { return skip_if(at_name(name)); }
  Token expect(TokenKind kind, std::string_view what);
  void expect_symbol(std::string_view symbol);
  void expect_name(std::string_view name);

 private:
  bool skip_if(bool there) {
    if (there) ++at_;
    return there;
  }

  std::vector<Token> tokens_;  // the last is `end`
  size_t at_ = 0;
};

}  // namespace quire::text::jinja
