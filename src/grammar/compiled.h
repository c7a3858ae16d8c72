// A grammar that xgrammar has compiled for one vocabulary.
#pragma once
#include <xgrammar/compiler.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace quire::grammar {

class Compiled {
 public:
  explicit Compiled(xgrammar::CompiledGrammar compiled) : grammar(std::move(compiled)) {}
  const xgrammar::CompiledGrammar grammar;
};

// What xgrammar makes of rules within so much processor time. name: "the grammar". Throws Refused when the time is
// over. The rules are ours, so whatever else xgrammar throws is no fault of the caller: CheckError, with its words.
std::shared_ptr<const Compiled> compiled_within(std::chrono::milliseconds time, const std::string& name,
                                                const std::function<xgrammar::CompiledGrammar()>& compile);

}  // namespace quire::grammar
