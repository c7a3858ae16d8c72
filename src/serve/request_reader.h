// What OpenAI's and SGLang's interfaces read alike: a body as JSON, sampling parameters with the same names and ranges,
// and constraints on the output.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/strict_json.h"
#include "engine/request.h"
#include "grammar/call_grammars.h"
#include "serve/caller.h"
#include "serve/fields.h"
#include "serve/service.h"

namespace quire::serve {

// Of a body, and of JSON that comes as a text inside one.
inline constexpr JsonLimits kBodyLimits{.depth = 64, .keys = 1024, .values = 1 << 20};
inline constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
inline constexpr size_t kMostStops = 64, kMostStopBytes = 1024;

// The body as an object. Throws ApiError 400: not JSON (with the place), no object, too deep, a key twice.
nlohmann::ordered_json body_of(const http::Request& request);

// temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty, repetition_penalty, seed, logit_bias,
// min_tokens / min_new_tokens, ignore_eos, stop_token_ids. What is not given is as the service's options say; without a
// seed, a random one. Stop ids are the model's own
// end ids (unless ignore_eos) and the caller's.
void read_sampling(Fields& fields, const Service& service, engine::Request& request);

int32_t read_priority(Fields& fields, const Caller& caller);  // above 0: only of those who may manage
std::vector<std::string> read_stops(Fields& fields);          // stop: none is empty, nulls are none

// A constraint in a field of that name, as the text that it is or, for schemas, as JSON itself; none: it is not there.
// Schemas are loose unless the fields are read strictly.
std::optional<grammar::Source> read_source(Fields& fields, std::string_view name, grammar::Kind kind);

// json_schema, regex or ebnf (at most one).
std::optional<grammar::Source> read_constraint(Fields& fields);
// Throws ApiError 400 about that field when the constraint cannot be compiled.
void constrain(const grammar::Source& source, const std::string& field, grammar::CallGrammars& grammars,
               engine::Request& request);
// Names what a loose source leaves out, as "response_format#/properties/tags/uniqueItems". Throws ApiError 400 for what
// is no schema.
void note_unenforced(const grammar::Source& source, const std::string& field, grammar::CallGrammars& grammars,
                     Ignored& ignored);

}  // namespace quire::serve
