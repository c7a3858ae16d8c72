// A grammar that xgrammar has compiled for one vocabulary.
#pragma once
#include <xgrammar/compiler.h>

#include <utility>

namespace quire::grammar {

class Compiled {
 public:
  explicit Compiled(xgrammar::CompiledGrammar compiled) : grammar(std::move(compiled)) {}
  const xgrammar::CompiledGrammar grammar;
};

}  // namespace quire::grammar
