// A call of /generate as jobs for the engine: each of its texts, as often as n says, with its sampling parameters.
//
// Errors   ApiError 400 that names the field: what is contradictory or out of range, and what would change the answer
//          and is not supported here.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "serve/caller.h"
#include "serve/service.h"
#include "serve/sglang_logprobs.h"

namespace quire::serve {

inline constexpr int32_t kMostGenerateTopLogprobs = 128;
inline constexpr int32_t kMostLogprobIds = 1024;
inline constexpr size_t kMostRidBytes = 256;

struct GenerateText {
  JobSpec job;
  LogprobRules logprobs = {};
};

struct GenerateBody {
  bool is_list;  // so is the answer: the call had a list of texts, or n > 1
  bool stream;
  std::vector<GenerateText> texts;  // in the order of the answer: all of the first text, then of the second
  std::string ignored = {};         // names of parameters that are not known (ignored.h)
  LogprobBudget::Share logprobs = {};
};

GenerateBody read_generate(const nlohmann::ordered_json& body, const Service& service, const Caller& caller);

}  // namespace quire::serve
