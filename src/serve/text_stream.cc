#include "serve/text_stream.h"

#include <utility>

namespace quire::serve {
namespace {

EndReason reason_of(engine::Finish finish) {
  switch (finish) {
    case engine::Finish::stop:
      return EndReason::stop;
    case engine::Finish::length:
      return EndReason::length;
    case engine::Finish::cancelled:
      return EndReason::cancelled;
    case engine::Finish::refused:
      return EndReason::refused;
    default:
      return EndReason::failed;
  }
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void add_token(const engine::Output& output, Progress& progress) {
  progress.tokens.push_back(output.logprobs);
  progress.tokens.back().token = output.token;  // also where no logprobs were asked for
}

}  // namespace

TextStream::TextStream(const text::Tokenizer& tokenizer, TextRules rules)
    : tokenizer_(tokenizer),
      rules_(std::move(rules)),
      characters_(rules_.drop_first_space && tokenizer.drops_first_space()),
      stop_(rules_.stops) {}

void TextStream::on_output(const engine::Output& output, Progress& progress) {
  if (ended_) return;
  progress.prompt_tokens = output.prompt_tokens;
  progress.cached_tokens = output.cached_tokens;
  progress.generated = output.generated;
  progress.speculated = output.speculated;
  append(progress.prompt_logprobs, output.prompt_logprobs);
  append(progress.embedding, output.embedding);
  if (output.token >= 0) add_token(output, progress);
  if (is_shown(output)) show(characters_.push(tokenizer_.piece(output.token)), progress);
  if (!ended_ && output.finish != engine::Finish::none) finish(output, progress);
}

bool TextStream::is_shown(const engine::Output& output) const {
  if (output.token < 0 || (rules_.skip_special && tokenizer_.is_special(output.token))) return false;
  return output.finish != engine::Finish::stop || rules_.keep_stop;
}

void TextStream::show(const std::string& characters, Progress& progress) {
  progress.text += stop_.push(characters);
  if (!stop_.found()) return;
  if (rules_.keep_stop) progress.text += stop_.match();
  progress.end = End{.reason = EndReason::stop, .matched = stop_.match()};
  stopped_ = ended_ = true;
}

void TextStream::finish(const engine::Output& output, Progress& progress) {
  show(characters_.flush(), progress);
  if (ended_) return;
  progress.text += stop_.flush();
  progress.end = End{.reason = reason_of(output.finish), .error = output.error};
  if (output.finish == engine::Finish::stop) progress.end->matched = output.token;
  ended_ = true;
}

std::optional<ApiError> error_of(const End& end) {
  if (end.reason == EndReason::refused) return ApiError(400, end.error);
  if (end.reason == EndReason::failed) return ApiError(500, kServerFailed);
  if (end.reason == EndReason::timeout && !end.error.empty()) return ApiError(503, end.error);
  return std::nullopt;
}

}  // namespace quire::serve
