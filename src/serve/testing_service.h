// For tests: a whole service over a tiny model with random weights, which speaks bytes. Its engine's loop thread runs.
//
//   ids 0 to 255     the bytes
//   256, 257, 258    <s> (before every text), </s> (ends one), <|assistant|>: special
//   259 to 319       "w259" and so on
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/exec.h"
#include "engine/engine.h"
#include "grammar/compiler.h"
#include "model/model.h"
#include "model/testing.h"
#include "serve/service.h"
#include "text/tokenizer.h"

namespace quire::serve::testing {

inline constexpr int32_t kBegin = 256, kEnd = 257, kAssistant = 258, kVocabulary = 320, kContext = 512;

text::Vocabulary tiny_vocabulary();  // its chat template puts each message after its role: "user: hi\n"

class TinyService {
 public:
  struct Options {
    engine::EngineOptions engine = {.max_total_tokens = 4 * kContext, .max_running_requests = 8};
    std::function<void(ServiceOptions&)> change = {};
    int32_t logits_without_token = 0;  // that the model has past the vocabulary
    grammar::CompilerLimits grammars = {};
    bool loop = true;  // false: the test steps the engine
  };
  explicit TinyService(const Options& options);
  TinyService() : TinyService(Options()) {}
  ~TinyService();  // stops the engine: what runs is cancelled and delivered

  Service& service() { return *service_; }
  engine::Engine& engine() { return engine_; }
  const text::Tokenizer& tokenizer() const { return tokenizer_; }
  bool wait_until_idle();  // no job is left, and the engine has returned its pages; false: not within a minute

 private:
  model::testing::TinyFile file_;
  Exec exec_;
  model::Model model_;
  text::Tokenizer tokenizer_;
  grammar::Compiler grammars_;
  engine::Engine engine_;
  std::unique_ptr<Service> service_;
};

}  // namespace quire::serve::testing
