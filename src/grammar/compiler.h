// From a description of allowed texts to masks of allowed tokens, on xgrammar's core.
//
// Compiling is for threads of callers, not the engine's: it may take long. Results are kept in a cache of limited size
// and shared; concurrent compilations of one source happen once. Masks themselves are xgrammar's, cached per state of
// the automaton.
//
// Limits   A source is read into rules of our own (rules.h), and only those reach xgrammar. Its size, its depth and the
//          size of its rules once counts are unrolled are checked before; xgrammar's work, which cannot be told from
//          them, ends when its processor time is over (time_guard.h). Masks have an allowance of time too, which all
//          texts of a call share.
// Errors   Refused, one line for the caller: wrong syntax, features of JSON schema that would not be enforced
//          (unless the source is loose), sources over the limits. CheckError where xgrammar fails at what was accepted.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/refused.h"
#include "engine/token_mask.h"
#include "grammar/time_guard.h"

namespace quire::grammar {

enum class Kind : uint8_t {
  json,         // any JSON object; no source
  json_schema,  // source: the schema
  regex,        // source: a regular expression that the whole text matches
  ebnf,         // source: rules in xgrammar's (GBNF's) form, beginning with root
};

struct Source {
  Kind kind;
  std::string text = {};
  bool loose = false;  // what a schema says and cannot be enforced is left out: unenforced() tells it
  friend bool operator==(const Source&, const Source&) = default;
};

struct CompilerLimits {
  size_t source_bytes = 64 << 10;
  int depth = 32;                              // of brackets in any source
  std::chrono::milliseconds time{3'000};       // of a processor, for one compilation
  std::chrono::milliseconds call_time{4'000};  // after which a call begins no other (call_grammars.h)
  size_t cache_bytes = 256 << 20;
  MaskTime mask_time = {};
};

struct Tokens {                     // what the compiler must know of a vocabulary
  std::vector<std::string> pieces;  // [vocabulary] bytes of each token in a text; "" for tokens that never stand in one
  std::vector<int32_t> end_ids;     // allowed where the text may end, and nowhere else
};

class Compiled;  // immutable, shared

class Compiler {  // const use from many threads
 public:
  Compiler(Tokens tokens, const CompilerLimits& limits = {});
  ~Compiler();

  std::shared_ptr<const Compiled> compile(const Source& source) const;
  // Places of keywords that a loose source leaves out, like #/properties/tags/uniqueItems. Much less work than
  // compiling.
  std::vector<std::string> unenforced(const Source& source) const;
  const CompilerLimits& limits() const;
  std::shared_ptr<TimeAllowance> allowance() const;  // of one call
  // A fresh text at its beginning, which shares the allowance with the others of its call, or is alone.
  std::unique_ptr<engine::TokenMask> mask(std::shared_ptr<const Compiled> compiled,
                                          std::shared_ptr<TimeAllowance> allowance) const;
  std::unique_ptr<engine::TokenMask> mask(std::shared_ptr<const Compiled> compiled) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::grammar
