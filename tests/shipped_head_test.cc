// The head that comes with quire, with its model: how much of what it drafts comes. Every draft is verified, whatever
// rows and passes cost here, so what is held is the head and all that its drafts go through: features, positions,
// slots, the vocabulary that it guesses from, the trees made of what it says. A small fault in one of them changes no
// answer and leaves drafts that come a little less often. Skipped where the model's file is not there.
//
// Greedy answers to prompts of bench/texts/prompts.json. Each bound is some 5 % below what was measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "engine/cpu_steps.h"
#include "engine/scheduler.h"
#include "model/eagle_head.h"
#include "model/model.h"
#include "text/tokenizer.h"

namespace quire::engine {
namespace {

constexpr int32_t kContext = 512, kTogether = 4;  // requests of a step: 4 trees have room among its draft rows

std::optional<std::string> model_file() {
  const auto environment = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  std::string cache = environment("QUIRE_CACHE");
  if (cache.empty() && !environment("XDG_CACHE_HOME").empty()) cache = environment("XDG_CACHE_HOME") + "/quire";
  if (cache.empty()) cache = environment("HOME") + "/.cache/quire";
  const std::string path = cache + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  return std::filesystem::exists(path) ? std::optional(path) : std::nullopt;
}

nlohmann::json prompts_file() {
  std::ifstream file(QUIRE_SOURCE_DIR "/bench/texts/prompts.json");
  return nlohmann::json::parse(file);
}

// As the model's template writes it.
std::string as_chat(const std::string& question) {
  return "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
         "<|im_start|>user\n" +
         question + "<|im_end|>\n<|im_start|>assistant\n";
}

// The model and its head with a scheduler over them, stepped until all that it was given is answered. Rows and passes
// cost nothing, so all drafts that may be are made and verified.
class Answers {
 public:
  Answers(const model::Model& model, const model::EagleHead& head, int32_t drafts, int32_t topk, Exec& exec)
      : limits_{.context = kContext,
                .pages = PageSize(16).pages_for(kTogether * kContext),
                .page_size = PageSize(16),
                .running = kTogether,
                .prefill_chunk = kTogether * kContext,
                .mixed_chunk = kTogether * kContext,
                .prefix_cache = false,
                .drafts = drafts,
                .topk = topk,
                .draft_steps = 5,
                .draft_model = true},
        scheduler_(limits_, {}, PrefillBudget(limits_.mixed_chunk), DraftBudget(limits_.drawn_rows(), 0, 0)),
        device_({.model = model,
                 .limits = limits_,
                 .kv_type = Dtype::bf16,
                 .vocabulary = model.config().vocabulary,
                 .deterministic = false,
                 .head = &head,
                 .table = scheduler_.table(),
                 .masks = masks_,
                 .exec = exec}) {
    scheduler_.set_draft_model(*device_.draft_model());
  }

  Speculated to(const std::vector<std::vector<int32_t>>& prompts, int32_t tokens, int32_t end) {
    for (const std::vector<int32_t>& prompt : prompts) {
      const Request request{
          .prompt = prompt, .sampling = {.temperature = 0}, .max_new_tokens = tokens, .stop_ids = {end}};
      scheduler_.add(++last_id_, request, [](const Output&) {});
      if (last_id_ % kTogether == 0) finish();
    }
    finish();
    return scheduler_.counters().speculated;
  }

 private:
  void finish() {
    while (scheduler_.running() + scheduler_.waiting() > 0) {
      Step step{.batch = scheduler_.plan()};
      scheduler_.advance(step.batch);
      device_.launch(step);
      device_.draw(step);
      step.results.time = step.results.following = {};
      scheduler_.settle(step.batch, step.results);
    }
  }

  SchedulerLimits limits_;
  Scheduler scheduler_;
  MaskThreads masks_;
  CpuSteps device_;
  RequestId last_id_ = 0;
};

class ShippedHead : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::optional<std::string> path = model_file();
    if (!path) GTEST_SKIP() << "the default model is not there: cmake/default_model.sh fetches it";
    model_.emplace(*path, exec_);
    head_.emplace(QUIRE_SOURCE_DIR "/models/SmolLM2-135M-Instruct.eagle3.safetensors", *model_, exec_);
    tokenizer_.emplace(text::vocabulary_from_path(*path));
  }
  // The first so many prompts of a kind.
  std::vector<std::vector<int32_t>> prompts(const std::string& kind, int32_t count) const {
    static const nlohmann::json file = prompts_file();
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < count; ++i) {
      std::string question = file["kinds"][kind][i];
      for (const auto& [name, text] : file["texts"].items())
        if (const size_t at = question.find("{" + name + "}"); at != std::string::npos)
          question.replace(at, name.size() + 2, text.get<std::string>());
      prompts.push_back(tokenizer_->encode(as_chat(question), {.add_special = false, .parse_special = true}));
    }
    return prompts;
  }
  Speculated drafted(const char* what, const std::vector<std::vector<int32_t>>& prompts, int32_t tokens, int32_t drafts,
                     int32_t topk) {
    const Speculated speculated =
        Answers(*model_, *head_, drafts, topk, exec_).to(prompts, tokens, *tokenizer_->find("<|im_end|>"));
    std::printf("%s: %lld verifications, %.3f tokens each, first drafts right in %.3f\n", what,
                static_cast<long long>(speculated.verifications), speculated.accept_length(), first_hits(speculated));
    return speculated;
  }
  // Of chains.
  static double first_hits(const Speculated& speculated) {
    return 1 - static_cast<double>(speculated.by_correct[0]) / static_cast<double>(speculated.verifications);
  }

  // Up to the instruction sets of which all give one text: their products round rows to 8 bits.
  Exec exec_{{.threads = 1, .isa = std::min(best_isa(), Isa::avx512vnni)}};
  std::optional<model::Model> model_;
  std::optional<model::EagleHead> head_;
  std::optional<text::Tokenizer> tokenizer_;
};

TEST_F(ShippedHead, ItsDraftsComeAsOftenAsTheyDid) {
  constexpr int32_t kPrompts = 4, kTokens = 40;
  const Speculated chat = drafted("chat", prompts("chat", kPrompts), kTokens, 3, 1);
  Speculated chains = chat;
  for (const char* kind : {"code", "summary", "rewrite", "extract"})
    chains.add(drafted(kind, prompts(kind, kPrompts), kTokens, 3, 1));
  const Speculated trees = drafted("chat, trees", prompts("chat", kPrompts), kTokens, 15, 4);
  std::printf("all chains: %.3f, %.3f\n", chains.accept_length(), first_hits(chains));
  EXPECT_GT(chains.accept_length(), 2.14);
  EXPECT_GT(first_hits(chains), 0.58);
  EXPECT_GT(trees.accept_length(), 1.97);
  EXPECT_GT(trees.accept_length(), 1.18 * chat.accept_length());
}

}  // namespace
}  // namespace quire::engine
