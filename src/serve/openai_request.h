// What the calls of OpenAI's interface that generate text have in common: names and ranges of the fields, and what is
// refused.
//
// Fields of SGLang's, vLLM's and llama.cpp's that ask for what quire does are read, those that SGLang's router always
// fills in are accepted. Whatever would change the answer and is not done is refused by name; all else is ignored, and
// named (ignored.h).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "grammar/call_grammars.h"
#include "serve/caller.h"
#include "serve/constraint.h"
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
  std::optional<Constraint> constraint = {};
  std::string ignored = {};  // names of what was ignored, once the whole body is read
  std::shared_ptr<grammar::CallGrammars> grammars = {};
};
CallSettings read_settings(Fields& fields, const Service& service, const Caller& caller);

// How long the answer may be: the first of these that is given. -1 and null are no limit but the context's, which is -1
// here; `otherwise`: none of them is there.
inline constexpr std::string_view kMaxTokensNames[] = {"max_completion_tokens", "max_tokens", "max_new_tokens",
                                                       "n_predict"};
int32_t read_max_tokens(Fields& fields, int32_t least, int32_t otherwise);

// model: there is one, so that any name is meant for it. Returns what the answer calls it: by the alias that was asked
// for, else by its own name.
std::string read_model(Fields& fields, const Service& service);

// The tokens of a whole text. Throws ApiError 400 for one that cannot fit the context.
std::vector<int32_t> encode_text(std::string_view text, const Service& service, bool parse_special,
                                 std::string_view field);

// Names what the constraint does not enforce. Throws ApiError 400 for one that is none.
void note_unenforced(const CallSettings& settings, Ignored& ignored);

// One job for each of n choices; seeds count up, and names too: "rid", "rid_1". Each has the constraint, if there is
// one.
void add_jobs(std::vector<JobSpec>& jobs, const CallSettings& settings, const engine::Request& request,
              const std::string& rid);

}  // namespace quire::serve
