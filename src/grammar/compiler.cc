#include "grammar/compiler.h"

#include <xgrammar/compiler.h>

#include <utility>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/refused.h"
#include "grammar/compile_cache.h"
#include "grammar/compiled.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/mask.h"
#include "grammar/regex.h"
#include "grammar/rules.h"
#include "grammar/rules_shape.h"
#include "grammar/rules_text.h"
#include "grammar/time_guard.h"

namespace quire::grammar {
namespace {

// What xgrammar does before it comes to the part that a TimeGuard ends grows with the places; so many take it less than
// a second.
constexpr int64_t kMostPlaces = 40'000;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::json:
      return "JSON";
    case Kind::json_schema:
      return "the JSON schema";
    case Kind::regex:
      return "the regular expression";
    case Kind::ebnf:
      return "the grammar";
  }
  return "";
}

Rules read(const Source& source, int most_depth, Places* unenforced) {
  switch (source.kind) {
    case Kind::json:
      return any_json_object();
    case Kind::json_schema:
      return read_json_schema(source.text, most_depth, source.loose ? unenforced : nullptr);
    case Kind::ebnf:
      return read_ebnf(source.text, most_depth);
    case Kind::regex:
      break;
  }
  Rules rules;
  rules.add(read_regex(source.text, most_depth));
  return rules;
}

Rules read(const Source& source, const CompilerLimits& limits, Places& unenforced) {
  check_input(source.text.size() <= limits.source_bytes, name_of(source.kind), " has ", source.text.size(),
              " bytes, more than ", limits.source_bytes);
  return read(source, limits.depth, &unenforced);
}

std::string xgrammar_rules(const Source& source, const CompilerLimits& limits) {
  const char* name = name_of(source.kind);
  Places unenforced;
  Rules rules = read(source, limits, unenforced);
  check_input(places(rules) <= kMostPlaces, name, " is too large: about ", places(rules), " places, more than ",
              kMostPlaces);
  try {
    remove_dead_ends(rules);
  } catch (const Refused& error) {
    throw Refused(cat(name, ": ", error.what()));
  }
  shape_rules(rules);
  return rules_text(rules);
}

xgrammar::TokenizerInfo tokenizer_info(const Tokens& tokens) {
  const auto vocabulary = static_cast<int32_t>(tokens.pieces.size());
  check(vocabulary > 0, "a vocabulary without tokens");
  for (const int32_t id : tokens.end_ids) {
    check(id >= 0 && id < vocabulary, "the end id ", id, " is outside the vocabulary of ", vocabulary);
  }
  return {tokens.pieces, xgrammar::VocabType::RAW, vocabulary, tokens.end_ids};
}

}  // namespace

std::shared_ptr<const Compiled> compiled_within(std::chrono::milliseconds time, const std::string& name,
                                                const std::function<xgrammar::CompiledGrammar()>& compile) {
  try {
    TimeAllowance allowance({.at_once = time});
    const TimeGuard guard(allowance);
    return std::make_shared<Compiled>(compile());
  } catch (const TimeOver&) {
    throw Refused(cat(name, " takes longer to compile than ", time.count(), " ms"));
  } catch (const std::exception& error) {
    throw CheckError(cat(name, " could not be compiled: ", in_quotes(error.what(), 400)));
  }
}

struct Compiler::Impl {
  Impl(const Tokens& tokens, const CompilerLimits& given_limits)
      : limits(given_limits),
        vocabulary(static_cast<int32_t>(tokens.pieces.size())),
        end_ids(tokens.end_ids),
        // One thread, because a TimeGuard speaks for its own; no cache of xgrammar's, where one source's masks could be
        // taken for another's.
        xgrammar(tokenizer_info(tokens), 1, false),
        cache(limits.cache_bytes, [](const Compiled& compiled) { return compiled.grammar.MemorySizeBytes(); }) {}

  std::shared_ptr<const Compiled> make(const Source& source) {
    check_input(!end_ids.empty(), "this model has no end token, so its output cannot be constrained");
    const std::string rules = xgrammar_rules(source, limits);
    return compiled_within(limits.time, name_of(source.kind), [&] { return xgrammar.CompileGrammar(rules); });
  }

  const CompilerLimits limits;
  const int32_t vocabulary;
  const std::vector<int32_t> end_ids;
  xgrammar::GrammarCompiler xgrammar;
  CompileCache cache;
};

Compiler::Compiler(Tokens tokens, const CompilerLimits& limits) : impl_(std::make_unique<Impl>(tokens, limits)) {}
Compiler::~Compiler() = default;

std::shared_ptr<const Compiled> Compiler::compile(const Source& source) const {
  const std::string key = cat(static_cast<int>(source.kind), source.loose ? " loose:" : ":", source.text);
  return impl_->cache.get(key, [&] { return impl_->make(source); });
}

std::vector<std::string> Compiler::unenforced(const Source& source) const {
  Places places;
  if (source.loose) read(source, impl_->limits, places);
  return places;
}

const CompilerLimits& Compiler::limits() const { return impl_->limits; }

std::shared_ptr<TimeAllowance> Compiler::allowance() const {
  return std::make_shared<TimeAllowance>(impl_->limits.mask_time);
}

std::unique_ptr<engine::TokenMask> Compiler::mask(std::shared_ptr<const Compiled> compiled,
                                                  std::shared_ptr<TimeAllowance> allowance) const {
  return std::make_unique<Mask>(std::move(compiled), impl_->vocabulary, impl_->end_ids, std::move(allowance));
}

std::unique_ptr<engine::TokenMask> Compiler::mask(std::shared_ptr<const Compiled> compiled) const {
  return mask(std::move(compiled), allowance());
}

}  // namespace quire::grammar
