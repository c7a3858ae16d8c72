// What the calls of OpenAI's interface that generate text have in common: names and ranges of the fields, and what is
// refused.
//
// Fields of SGLang's that ask for what quire does are read, those that its router always fills in are accepted, and
// whatever asks for something that would not be done is refused by name.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "grammar/compiler.h"
#include "serve/caller.h"
#include "serve/fields.h"
#include "serve/service.h"

namespace quire::serve {

inline constexpr int64_t kMostTopLogprobs = 20;

struct CallSettings {
  std::string model;  // its name in the answer
  std::string rid;    // of the caller; "": none was given
  int32_t key = -1;   // Caller::key
  int32_t choices = 1;
  bool stream = false, stream_usage = false;
  engine::Request request = {};  // all but the prompt and how long the answer may be
  TextRules text = {};
  std::optional<grammar::Source> constraint = {};
  std::string constraint_field = {};  // that the constraint came from
};
CallSettings read_settings(Fields& fields, const Service& service, const Caller& caller);

// model: there is one, so that any name is meant for it. Returns what the answer calls it: by the alias that was asked
// for, else by its own name.
std::string read_model(Fields& fields, const Service& service);

// The tokens of a whole text. Throws ApiError 400 for one that cannot fit the context.
std::vector<int32_t> encode_text(std::string_view text, const Service& service, bool parse_special,
                                 std::string_view field);

// One job for each of n choices; seeds count up, and names too: "rid", "rid_1". Each has the constraint, if there is
// one.
void add_jobs(std::vector<Job>& jobs, const CallSettings& settings, const engine::Request& request,
              const std::string& rid, const Service& service);

}  // namespace quire::serve
