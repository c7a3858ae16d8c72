// What fits the model's context, and how much a call may ask to be told about it.
//
// Errors   ApiError 400 that names the field; context_length_exceeded where a prompt is too long.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "serve/fields.h"
#include "serve/service.h"

namespace quire::serve {

// Of a text it is known only that it cannot fit, but that before it is tokenized.
void check_text_length(std::string_view text, const Service& service, std::string_view field);
// The tokens of a text from outside; what the tokenizer refuses is told to the caller.
std::vector<int32_t> encoded_text(std::string_view text, const text::EncodeOptions& options, const Service& service,
                                  std::string_view field);
void check_prompt_length(size_t tokens, const Service& service, std::string_view field);
// Ids from outside: the first that the tokenizer does not have is named. Models may have logits for more.
void check_token_ids(std::span<const int32_t> ids, const Service& service, std::string_view field);

// Holds a request's max_new_tokens to the server's own limit of an answer: a default, and no limit at all, become that.
// Throws when the first of these fields that is there asks for more, or min_tokens for more than those.
void limit_answer(engine::Request& request, Fields& fields, std::span<const std::string_view> names,
                  const Service& service);

// So many logprobs of one call, prompts and answers, take some 200 MB as JSON.
inline constexpr int64_t kMostLogprobs = 4 << 20;

// Of one answer, where each part of its stream has all those before it, too: so many are some 4 MB as JSON, which is
// copied by a thread that serves others.
inline constexpr int64_t kMostRepeatedLogprobs = 128 << 10;

// Of all answers of a call together: what each position gives, times the positions that it can come to.
class LogprobCount {
 public:
  LogprobCount(const Service& service, std::string_view field) : service_(service), field_(field) {}
  void add(const engine::Request& request, int64_t answers);  // with its prompt; throws when they are too many
  void check_repeated(const engine::Request& request) const;  // of a stream that repeats them; throws
  LogprobBudget::Share share() const;  // of what all calls may come to, for as long as this one is being answered

 private:
  const Service& service_;
  std::string_view field_;
  int64_t count_ = 0;
};

}  // namespace quire::serve
