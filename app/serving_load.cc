#include "serving_load.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "base/check.h"
#include "base/in_quotes.h"

namespace quire::bench {
namespace {

using Json = nlohmann::ordered_json;

// Plain arithmetic on the generator's numbers: the library's distributions differ between implementations.
int32_t drawn(std::mt19937_64& random, int32_t least, int32_t most) {
  return least + static_cast<int32_t>(random() % (static_cast<uint64_t>(most - least) + 1));
}

std::vector<int32_t> drawn_ids(std::mt19937_64& random, int32_t count, int32_t vocabulary) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = drawn(random, 0, vocabulary - 1);
  return ids;
}

// Most tokenizers have each of these as one token, with the space before it.
std::string words_of(std::span<const int32_t> ids) {
  static constexpr const char* kWords[] = {
      "the",  "of",   "and",  "to",   "in",   "is",    "that",  "for",   "it",    "as",   "was",   "with", "on",
      "by",   "his",  "this", "are",  "or",   "had",   "not",   "but",   "from",  "have", "an",    "they", "which",
      "one",  "you",  "were", "her",  "all",  "she",   "there", "would", "their", "we",   "him",   "been", "has",
      "when", "who",  "will", "more", "no",   "if",    "out",   "so",    "said",  "what", "up",    "its",  "about",
      "into", "than", "them", "can",  "only", "other", "new",   "some",  "could", "time", "these", "two"};
  std::string text;
  for (const int32_t id : ids)
    text += cat(text.empty() ? "" : " ", kWords[static_cast<size_t>(id) % std::size(kWords)]);
  return text;
}

Json prompt_of(const std::vector<int32_t>& ids, bool words) { return words ? Json(words_of(ids)) : Json(ids); }

Json messages_of(std::span<const int32_t> ids, size_t shared) {
  Json messages = Json::array();
  if (shared > 0) messages.push_back({{"role", "system"}, {"content", words_of(ids.first(shared))}});
  messages.push_back({{"role", "user"}, {"content", words_of(ids.subspan(shared))}});
  return messages;
}

}  // namespace

Endpoint endpoint_from(const std::string& name) {
  if (name == "completions") return Endpoint::completions;
  if (name == "chat") return Endpoint::chat;
  check(name == "generate", "the endpoint \"", name, "\" is not one of completions, chat, generate");
  return Endpoint::generate;
}

std::string name_of(const LoadShape& shape) {
  const std::string prompt = shape.least_prompt == shape.most_prompt ? cat(shape.least_prompt)
                                                                     : cat(shape.least_prompt, "-", shape.most_prompt);
  const std::string shared = shape.shared_tokens > 0 ? cat("shared=", shape.shared_tokens, "/") : "";
  return cat(shared, "prompt=", prompt, "/output=", shape.output_tokens);
}

Load::Load(LoadShape shape, std::string host, std::string api_key)
    : shape_(std::move(shape)), host_(std::move(host)), api_key_(std::move(api_key)) {
  check(shape_.least_prompt >= 1 && shape_.least_prompt <= shape_.most_prompt, "prompts of ", shape_.least_prompt,
        " to ", shape_.most_prompt, " tokens");
  check(shape_.more.empty() || Json::parse(shape_.more, nullptr, false).is_object(), "what a body has besides, ",
        in_quotes(shape_.more, 200), ", is not a JSON object");
  std::mt19937_64 random(shape_.seed);
  shared_ = drawn_ids(random, shape_.shared_tokens, shape_.vocabulary);
}

std::vector<int32_t> Load::prompt(int64_t request) const {
  std::seed_seq seed{shape_.seed & 0xffffffff, shape_.seed >> 32, static_cast<uint64_t>(request) + 1};
  std::mt19937_64 random(seed);
  const int32_t length = drawn(random, shape_.least_prompt, shape_.most_prompt);
  const int32_t shared = std::min(shape_.shared_tokens, length - 1);
  std::vector<int32_t> ids(shared_.begin(), shared_.begin() + shared);
  for (const int32_t id : drawn_ids(random, length - shared, shape_.vocabulary)) ids.push_back(id);
  return ids;
}

std::string Load::body(int64_t request) const {
  const std::vector<int32_t> ids = prompt(request);
  Json body = Json::object();
  if (!shape_.model.empty()) body["model"] = shape_.model;
  Json limits = {{"temperature", 0}};
  if (shape_.ignore_eos) limits["ignore_eos"] = true;
  if (shape_.endpoint == Endpoint::generate) {
    limits["max_new_tokens"] = shape_.output_tokens;
    body[shape_.words ? "text" : "input_ids"] = prompt_of(ids, shape_.words);
    body["sampling_params"] = limits;
  } else {
    limits["max_tokens"] = shape_.output_tokens;
    if (shape_.endpoint == Endpoint::chat)
      body["messages"] = messages_of(ids, std::min(shared_.size(), ids.size() - 1));
    else
      body["prompt"] = prompt_of(ids, shape_.words);
    body.update(limits);
    body["stream_options"] = {{"include_usage", true}};
  }
  body["stream"] = true;
  if (!shape_.more.empty()) body.merge_patch(Json::parse(shape_.more));
  return body.dump();
}

std::string Load::head(const std::string& method, const std::string& path) const {
  const std::string key = api_key_.empty() ? "" : cat("Authorization: Bearer ", api_key_, "\r\n");
  return cat(method, " ", path, " HTTP/1.1\r\nHost: ", host_, "\r\n", key);
}

std::string Load::bytes(int64_t request) const {
  const char* const path = shape_.endpoint == Endpoint::completions ? "/v1/completions"
                           : shape_.endpoint == Endpoint::chat      ? "/v1/chat/completions"
                                                                    : "/generate";
  const std::string text = body(request);
  return cat(head("POST", path), "Content-Type: application/json\r\nContent-Length: ", text.size(), "\r\n\r\n", text);
}

std::string Load::health_check() const { return head("GET", "/health") + "\r\n"; }

}  // namespace quire::bench
