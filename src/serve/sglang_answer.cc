#include "serve/sglang_answer.h"

#include <utility>

#include "base/check.h"
#include "serve/json_text.h"
#include "serve/openai_stream.h"

namespace quire::serve {

namespace {

std::string abort_reason(const std::string& message) {
  return cat(R"({"type":"abort","message":)", json_string(message), "}");
}

std::string finish_reason(const std::optional<End>& end, int32_t generated) {
  if (!end) return "null";
  switch (end->reason) {
    case EndReason::stop:
      return cat(R"({"type":"stop","matched":)", matched_stop(*end), "}");
    case EndReason::length:
      return cat(R"({"type":"length","length":)", generated, "}");
    case EndReason::cancelled:
      return abort_reason("Aborted");
    case EndReason::timeout:
      return abort_reason("the time limit for a request is over");
    case EndReason::refused:
    case EndReason::failed:
      return abort_reason(end->error);
  }
  return "null";
}

// Verifications by how many drafts came true, from none on.
std::string correct_histogram(const engine::Speculated& drafts) {
  size_t counts = drafts.by_correct.size();
  while (counts > 0 && drafts.by_correct[counts - 1] == 0) --counts;
  std::string list;
  for (size_t i = 0; i < counts; ++i) list += cat(i > 0 ? "," : "", drafts.by_correct[i]);
  return cat("[", list, "]");
}

std::string speculation(const engine::Speculated& drafts) {
  return cat(R"(,"spec_accept_length":)", json_number(drafts.accept_length()), R"(,"spec_accept_rate":)",
             json_number(drafts.accept_rate()), R"(,"spec_num_correct_drafts":)", drafts.correct,
             R"(,"spec_num_proposed_drafts":)", drafts.drafts, R"(,"spec_verify_ct":)", drafts.verifications,
             R"(,"spec_correct_drafts_histogram":)", correct_histogram(drafts));
}

}  // namespace

GenerateAnswer::GenerateAnswer(const text::Tokenizer& tokenizer, std::string rid, LogprobRules logprobs)
    : rid_(std::move(rid)), logprobs_(tokenizer, logprobs) {}

void GenerateAnswer::on_progress(const Progress& progress) {
  append_escaped(text_, progress.text);
  for (const engine::TokenLogprob& token : progress.tokens) {
    if (!ids_.empty()) ids_ += ',';
    ids_ += std::to_string(token.token);
  }
  logprobs_.add_prompt(progress.prompt_logprobs);
  logprobs_.add(progress.tokens);
  prompt_tokens_ = progress.prompt_tokens;
  cached_tokens_ = progress.cached_tokens;
  generated_ = progress.generated;
  speculated_ = progress.speculated;
  if (!progress.end) return;
  end_ = progress.end;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

std::string GenerateAnswer::meta_info() const {
  std::string json = cat(R"({"id":)", json_string(rid_), R"(,"finish_reason":)", finish_reason(end_, generated_),
                         R"(,"prompt_tokens":)", prompt_tokens_, R"(,"weight_version":"default",)");
  logprobs_.append_to(json);
  json += cat(R"("completion_tokens":)", generated_, R"(,"cached_tokens":)", cached_tokens_);
  if (speculated_.verifications > 0) json += speculation(speculated_);
  if (end_) json += cat(R"(,"e2e_latency":)", json_number(seconds_));
  return json + '}';
}

std::string GenerateAnswer::json(std::optional<size_t> index) const {
  std::string json;
  const std::string meta = meta_info();
  json.reserve(text_.size() + ids_.size() + meta.size() + 64);
  json.append(R"({"text":")").append(text_).append(R"(","output_ids":[)").append(ids_);
  json.append(R"(],"meta_info":)").append(meta);
  if (index) json.append(R"(,"index":)").append(std::to_string(*index));
  return json + '}';
}

std::string GenerateAnswer::part(std::optional<size_t> index) {
  std::string part = json(index);
  logprobs_.forget_prompt();
  return part;
}

}  // namespace quire::serve
