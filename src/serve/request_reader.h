// What OpenAI's and SGLang's interfaces read alike: a body as JSON, and sampling parameters with the same names and
// ranges.
#pragma once
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/strict_json.h"
#include "engine/request.h"
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

}  // namespace quire::serve
