#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/api_error.h"
#include "serve/call_limits.h"
#include "serve/json_text.h"
#include "serve/openai.h"
#include "serve/openai_prompts.h"
#include "serve/openai_request.h"
#include "serve/openai_stream.h"
#include "serve/request_reader.h"
#include "serve/watched_exchange.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostInputs = 2048;  // as OpenAI has it
constexpr size_t kMostAtOnce = 32;    // of one call: the queue is everybody's

struct EmbeddingBody {
  std::vector<Prompt> inputs;
  engine::Pooling pooling = engine::Pooling::last;
  bool base64 = false;
  std::string model;  // its name in the answer
  std::string salt, rid, ignored = {};
  int32_t key = -1;  // Caller::key
};

bool read_is_base64(Fields& fields) {
  const std::string format = fields.string("encoding_format", 64).value_or("float");
  if (format != "float" && format != "base64")
    refuse("encoding_format", cat("expected float or base64, got ", in_quotes(format, 40)));
  return format == "base64";
}

engine::Pooling read_pooling(Fields& fields) {
  const std::string pooling = fields.string("pooling", 64).value_or("last");
  if (pooling != "last" && pooling != "mean")
    refuse("pooling", cat("expected last or mean, got ", in_quotes(pooling, 40)));
  return pooling == "mean" ? engine::Pooling::mean : engine::Pooling::last;
}

EmbeddingBody read_embedding(const ordered_json& json, const Service& service, const Caller& caller) {
  Ignored ignored(service.options().strict_fields);
  Fields fields(json, "", &ignored);
  EmbeddingBody body;
  body.model = read_model(fields, service);
  body.base64 = read_is_base64(fields);
  body.pooling = read_pooling(fields);
  body.salt = joined_salt(caller, fields.string("cache_salt", 512).value_or(""));
  body.key = caller.key;
  body.rid = fields.string("rid", 512).value_or("");
  const int32_t width = service.config().width;
  const auto dimensions = fields.integer("dimensions", 1, 1 << 20);
  if (dimensions && *dimensions != width) refuse("dimensions", cat("this model gives ", width, " and nothing else"));
  for (const char* name : {"user", "priority", "log_metrics"}) fields.ignore(name);
  const ordered_json& input = fields.required("input");
  fields.finish();
  body.ignored = ignored.header();
  body.inputs = read_prompts(input, {"input", kMostInputs, false}, service);
  for (const Prompt& prompt : body.inputs) check_prompt_length(prompt.ids.size(), service, "input");
  return body;
}

// The numbers' bytes, least significant first, in base 64.
std::string base64_of(std::span<const float> numbers) {
  std::string bytes;
  for (const float number : numbers)
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(std::bit_cast<uint32_t>(number) >> shift);
  return in_base64(bytes);
}

std::string list_of(std::span<const float> numbers) {
  std::string text = "[";
  for (const float number : numbers) text.append(text.size() > 1 ? "," : "").append(json_number(number));
  return text + "]";
}

// Runs some inputs at a time, so that a long list leaves room in the queue for others. In the exchange's order.
class EmbeddingAnswer : public std::enable_shared_from_this<EmbeddingAnswer> {
 public:
  EmbeddingAnswer(std::shared_ptr<http::Exchange> exchange, Service& service, EmbeddingBody body)
      : exchange_(std::move(exchange)), service_(service), body_(std::move(body)), vectors_(body_.inputs.size()) {}

  void start() {
    while (!over_ && started_ < body_.inputs.size() && started_ - ended_ < kMostAtOnce && start_one(started_))
      ++started_;
  }

 private:
  // False: it was not. While others of the call run, a full queue is no end: whoever ends tries again.
  bool start_one(size_t i) {
    JobSpec job{.rid = i == 0 ? body_.rid : cat(body_.rid, "_", i), .request = {.prompt = body_.inputs[i].ids}};
    job.key = body_.key;
    job.follows = i > 0;
    job.request.max_new_tokens = 0;
    job.request.pooling = body_.pooling;
    job.request.salt = body_.salt;
    try {
      jobs_.push_back(service_.run(std::move(job), exchange_, [self = shared_from_this(), i](Progress progress) {
        self->on_progress(i, progress);
      }));
      body_.inputs[i] = {};
      return true;
    } catch (const ApiError& error) {
      if (error.status != 503 || started_ == ended_) fail(error);
      return false;
    }
  }

  void on_progress(size_t i, const Progress& progress) {
    if (over_ || !progress.end) return;
    const End& end = *progress.end;
    if (end.reason == EndReason::failed) return fail(ApiError(500, kServerFailed));
    if (end.reason == EndReason::timeout)
      return fail(ApiError(503, end.error.empty() ? "the time is over" : end.error));
    if (end.reason == EndReason::cancelled) return fail(ApiError(503, "the request was aborted"));
    vectors_[i] = body_.base64 ? cat("\"", base64_of(progress.embedding), "\"") : list_of(progress.embedding);
    tokens_ += progress.prompt_tokens;
    ++ended_;
    if (ended_ == vectors_.size())
      send();
    else
      start();
  }

  void send() {
    over_ = true;
    std::string body = R"({"object":"list","data":[)";
    for (size_t i = 0; i < vectors_.size(); ++i)
      body.append(cat(i > 0 ? "," : "", R"({"object":"embedding","index":)", i, R"(,"embedding":)", vectors_[i], "}"));
    body.append(cat(R"(],"model":)", json_string(body_.model), R"(,"usage":{"prompt_tokens":)", tokens_,
                    R"(,"total_tokens":)", tokens_, "}}"));
    exchange_->respond({.body = std::move(body)});
  }

  void fail(const ApiError& error) {
    over_ = true;
    for (const auto& job : jobs_) job->cancel();
    exchange_->respond(error_response(error, Interface::openai));
  }

  const std::shared_ptr<http::Exchange> exchange_;
  Service& service_;
  EmbeddingBody body_;
  std::vector<std::string> vectors_;  // JSON
  std::vector<std::shared_ptr<JobHandle>> jobs_;
  size_t started_ = 0, ended_ = 0;
  int64_t tokens_ = 0;
  bool over_ = false;
};

}  // namespace

void embeddings(std::shared_ptr<http::Exchange> exchange, Service& service, const Caller& caller) {
  EmbeddingBody body = read_embedding(body_of(exchange->request()), service, caller);
  note(*exchange, [&](Answered& so_far) { so_far.ignored = body.ignored; });
  if (body.rid.empty()) body.rid = service.new_id("embd-");
  const auto answer = std::make_shared<EmbeddingAnswer>(exchange, service, std::move(body));
  exchange->post([answer] { answer->start(); });
}

}  // namespace quire::serve
