#include "serve/testing_service.h"

#include <chrono>
#include <thread>

#include "base/check.h"
#include "serve/grammar_tokens.h"
#include "text/byte_token.h"

namespace quire::serve::testing {
namespace {

constexpr const char* kTemplate =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

void add_special(text::Vocabulary& vocabulary, const char* name) {
  vocabulary.added.push_back({.id = vocabulary.tokens.add(name), .special = true});
  vocabulary.types.push_back(text::TokenType::control);
}

engine::EngineOptions engine_options(engine::EngineOptions options, const text::Tokenizer& tokenizer) {
  options.vocabulary = tokenizer.size();
  return options;
}

ServiceOptions service_options(const TinyService::Options& options) {
  ServiceOptions service{.model_path = "/models/tiny", .served_model_name = "tiny"};
  if (options.change) options.change(service);
  return service;
}

}  // namespace

text::Vocabulary tiny_vocabulary() {
  text::Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary.tokens.add(text::letters_of_bytes(std::string(1, static_cast<char>(byte))));
  vocabulary.types.assign(256, text::TokenType::normal);
  for (const char* name : {"<s>", "</s>", "<|assistant|>"}) add_special(vocabulary, name);
  for (int id = 259; id < kVocabulary; ++id) vocabulary.tokens.add(cat("w", id));
  vocabulary.types.resize(kVocabulary, text::TokenType::normal);
  vocabulary.mergeable.assign(256, true);
  vocabulary.mergeable.resize(kVocabulary, false);
  vocabulary.pre_tokenizer = {text::Split{"[^\\n]+|\\n+"}};
  vocabulary.bos = kBegin;
  vocabulary.eos = kEnd;
  vocabulary.prefix = {kBegin};
  vocabulary.end_ids = {kEnd};
  vocabulary.chat_template = kTemplate;
  return vocabulary;
}

TinyService::TinyService(const Options& options)
    : file_({.vocabulary = kVocabulary + options.logits_without_token, .context = kContext}),
      exec_({.threads = 1}),
      model_(file_.path(), exec_),
      tokenizer_(tiny_vocabulary()),
      grammars_(grammar_tokens(tokenizer_, model_.config().vocabulary), options.grammars),
      engine_(model_, engine_options(options.engine, tokenizer_), exec_),
      service_(
          std::make_unique<Service>(Service::Parts{tokenizer_, model_, engine_, grammars_}, service_options(options))) {
  if (options.loop) engine_.start();
}

TinyService::~TinyService() { engine_.stop(); }

bool TinyService::wait_until_idle() {
  using std::chrono::steady_clock;
  const auto most = steady_clock::now() + std::chrono::minutes(1);
  const auto idle = [&] {
    const engine::EngineStats stats = engine_.stats();
    return service_->jobs() == 0 && stats.running == 0 && stats.queued == 0 &&
           stats.free_pages + stats.cached_pages == stats.total_pages;
  };
  while (!idle() && steady_clock::now() < most) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return idle();
}

}  // namespace quire::serve::testing
