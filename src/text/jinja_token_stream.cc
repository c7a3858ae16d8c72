#include "text/jinja_token_stream.h"

namespace quire::text::jinja {

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::data:
      return "text";
    case TokenKind::print_begin:
      return "'{{'";
    case TokenKind::print_end:
      return "'}}'";
    case TokenKind::block_begin:
      return "'{%'";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::string:
      return "a string";
    case TokenKind::integer:
    case TokenKind::real:
      return "a number";
    case TokenKind::name:
    case TokenKind::symbol:
      return cat("'", token.text, "'");
    case TokenKind::end:
      return "the end of the template";
  }
  return "";
}

Token TokenStream::expect(TokenKind kind, std::string_view what) {
  if (!at(kind)) fail_at(line(), "expected ", what, ", got ", describe(current()));
  return next();
}

void TokenStream::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) fail_at(line(), "expected '", symbol, "', got ", describe(current()));
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_at(line(), "expected '", name, "', got ", describe(current()));
}

}  // namespace quire::text::jinja
