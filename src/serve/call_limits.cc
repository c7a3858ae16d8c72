#include "serve/call_limits.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/refused.h"
#include "serve/api_error.h"

namespace quire::serve {
namespace {

size_t most_prompt_tokens(const Service& service) {  // one is left for the answer
  return static_cast<size_t>(service.engine_options().context) - 1;
}

[[noreturn]] void refuse_length(const std::string& tokens, const Service& service, std::string_view field) {
  throw ApiError(400,
                 cat("this model's context is ", service.engine_options().context, " tokens, so a prompt may have ",
                     most_prompt_tokens(service), ", and this one has ", tokens),
                 std::string(field), "context_length_exceeded");
}

size_t longest_piece(const text::Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.size(); ++id) longest = std::max(longest, tokenizer.piece(id).size());
  return longest;
}

// Positions whose logprobs the request wants, of the answer and of the prompt; and how many each of them gives.
int64_t answer_positions(const engine::Request& request, int64_t context) {
  const int64_t room = std::max<int64_t>(context - std::ssize(request.prompt), 0);
  return request.max_new_tokens < 0 ? room : std::min<int64_t>(request.max_new_tokens, room);
}

int64_t prompt_positions(const engine::Request& request, int64_t context) {
  if (request.prompt_logprobs_from < 0) return 0;
  return std::max<int64_t>(std::min<int64_t>(std::ssize(request.prompt), context) - request.prompt_logprobs_from, 0);
}

int64_t logprobs_of_each(const engine::Request& request) {
  return 1 + request.top_logprobs + std::ssize(request.logprob_ids);
}

}  // namespace

void check_text_length(std::string_view text, const Service& service, std::string_view field) {
  const auto context = static_cast<size_t>(service.engine_options().context);
  // Most texts are not nearly that long, so the longest token need not be known for them.
  constexpr size_t kUsualPiece = 16;
  if (text.size() > context * kUsualPiece && text.size() > context * longest_piece(service.tokenizer()))
    refuse_length(cat("more than ", context), service, field);
}

std::vector<int32_t> encoded_text(std::string_view text, const text::EncodeOptions& options, const Service& service,
                                  std::string_view field) {
  try {
    return service.tokenizer().encode(text, options);
  } catch (const Refused& refused) {
    throw ApiError(400, cat(field, ": the text cannot be tokenized: ", refused.what()), std::string(field));
  }
}

void check_prompt_length(size_t tokens, const Service& service, std::string_view field) {
  if (tokens > most_prompt_tokens(service)) refuse_length(std::to_string(tokens), service, field);
}

void check_token_ids(std::span<const int32_t> ids, const Service& service, std::string_view field) {
  const int32_t vocabulary = service.engine_options().vocabulary;
  for (const int32_t id : ids)
    if (id < 0 || id >= vocabulary)
      throw ApiError(400, cat(field, ": there is no token ", id, " in the vocabulary of ", vocabulary),
                     std::string(field));
}

void limit_answer(engine::Request& request, Fields& fields, std::span<const std::string_view> names,
                  const Service& service) {
  if (request.max_new_tokens >= 0 && request.min_new_tokens > request.max_new_tokens)
    refuse(fields.path_of(fields.has("min_new_tokens") ? "min_new_tokens" : "min_tokens"),
           cat("expected at most the ", request.max_new_tokens, " tokens that the answer may have"));
  const int32_t most = service.options().max_completion_tokens;
  if (most == 0 || (request.max_new_tokens >= 0 && request.max_new_tokens <= most)) return;
  const auto named = std::find_if(names.begin(), names.end(), [&](std::string_view name) { return fields.has(name); });
  const bool asked = named != names.end() && request.max_new_tokens > most;
  if (asked) refuse(fields.path_of(*named), cat("an answer of this server has at most ", most, " tokens"));
  request.max_new_tokens = most;
}

void LogprobCount::add(const engine::Request& request, int64_t answers) {
  if (request.top_logprobs < 0) return;
  const int64_t context = service_.engine_options().context;
  count_ +=
      answers * logprobs_of_each(request) * (answer_positions(request, context) + prompt_positions(request, context));
  const int64_t most = std::min(kMostLogprobs, service_.logprob_budget().most());
  if (count_ > most)
    throw ApiError(400,
                   cat(field_, ": a call may come to ", most,
                       " logprobs, and this one to more: ask for fewer answers, tokens or logprobs of each"),
                   std::string(field_));
}

void LogprobCount::check_repeated(const engine::Request& request) const {
  if (request.top_logprobs < 0) return;
  const int64_t answer = answer_positions(request, service_.engine_options().context);
  if (answer * logprobs_of_each(request) > kMostRepeatedLogprobs)
    throw ApiError(
        400,
        cat(field_, ": a stream repeats an answer's logprobs with every event, so they may come to ",
            kMostRepeatedLogprobs, ", and these to more: ask for fewer tokens or logprobs, or for no stream"),
        std::string(field_));
}

LogprobBudget::Share LogprobCount::share() const { return service_.logprob_budget().take(count_); }

}  // namespace quire::serve
