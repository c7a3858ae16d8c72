#include "session.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "engine/available_memory.h"
#include "engine/pool_memory.h"
#include "model_path.h"

namespace quire {
namespace {

constexpr const char* kModelHelp =
    "GGUF file, Hugging Face folder, or ORG/NAME[:FILE.gguf] at a hub; default: $QUIRE_MODEL, else the model that "
    "./run "
    "fetches";

std::optional<text::ChatTemplate> template_of(const text::Tokenizer& tokenizer) {
  const std::optional<std::string>& source = tokenizer.vocabulary().chat_template;
  if (!source) return std::nullopt;
  return text::ChatTemplate(*source);
}

engine::EngineOptions engine_options(const SessionOptions& options, const model::Model& model,
                                     const text::Tokenizer& tokenizer) {
  engine::EngineOptions engine = options.engine;
  engine.vocabulary = std::min(tokenizer.size(), model.config().vocabulary);
  engine.kv_type = kv_type_from(options.kv_type);
  return engine;
}

}  // namespace

Dtype kv_type_from(const std::string& name) {
  if (name == "f16") return Dtype::f16;
  if (name == "f32") return Dtype::f32;
  return name.starts_with("fp8") ? Dtype::f8e4m3 : Dtype::bf16;  // "auto" and SGLang's names of the two included
}

Isa usable_isa(const std::string& name) {
  if (name.empty()) return best_isa();
  const Isa isa = isa_from(name);
  check_available(isa);
  return isa;
}

model::Model load_model(const std::string& path, Exec& exec, const SayLine& say_line) {
  check_model(path);
  Progress progress(say_line);
  const std::string name = std::filesystem::path(path).filename();
  int64_t shown = -1;
  return model::Model(path, exec, [&](int64_t done, int64_t total) {
    const int64_t percent = total ? 100 * done / total : 100;
    if (percent == std::exchange(shown, percent)) return;
    progress.say(cat("loading ", name, ": ", percent, " %"));
  });
}

CLI::Option* add_model_option(CLI::App& app, std::string& model) {
  return app.add_option("-m,--model,--model-path", model, kModelHelp);
}

CLI::Option* add_model_argument(CLI::App& app, std::string& model) {
  return app.add_option("MODEL,-m,--model,--model-path", model, kModelHelp);
}

CLI::Option* add_threads_option(CLI::App& app, int& threads) {
  return app.add_option("-t,--threads", threads, "0: as many as the cores this process may use")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
}

CLI::Option* add_kv_type_option(CLI::App& app, std::string& kv_type) {
  return app.add_option("--kv-cache-dtype", kv_type, "type of the keys and values that are kept")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "bf16", "bfloat16", "f16", "f32", "fp8", "fp8_e4m3"}));
}

CLI::Option* add_isa_option(CLI::App& app, std::string& isa) {
  return app.add_option("--isa", isa, "instruction set; default: the best that works here")
      ->check(CLI::IsMember({"plain", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"}));
}

void add_session_options(CLI::App& app, SessionOptions& options) {
  add_model_option(app, options.model);
  add_threads_option(app, options.threads);
  app.add_option("-c,--context-length", options.engine.context, "most tokens of a text; default: the model's own")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--max-total-tokens", options.engine.max_total_tokens,
                 "tokens whose keys and values are kept; default: four contexts, within a quarter of the free memory")
      ->check(CLI::Range(1, 1 << 30));
  add_kv_type_option(app, options.kv_type);
  app.add_option("--page-size", options.engine.page_size, "tokens of a page of keys and values")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 16, 32, 64, 128}));
  add_isa_option(app, options.isa);
}

Session::Session(const SessionOptions& options, const SessionNews& news)
    : path(model_path(options.model, news.progress)),
      exec({.threads = options.threads, .isa = usable_isa(options.isa)}),
      model(load_model(path, exec, news.progress)),
      tokenizer(text::vocabulary_from_path(path)),
      chat_template(template_of(tokenizer)),
      engine(model, engine_options(options, model, tokenizer), exec) {
  const engine::EngineOptions& used = engine.options();
  const auto warning =
      engine::tight_memory(model.config(), used.kv_type, used.max_total_tokens, engine::available_memory());
  if (warning) news.warning(*warning);
}

std::string Session::render(const nlohmann::ordered_json& messages) const {
  check(chat_template.has_value(), path, " has no chat template: it can only continue text (quire generate)");
  const text::Vocabulary& vocabulary = tokenizer.vocabulary();
  const auto special = [&](const std::optional<int32_t>& id) { return id ? std::string(tokenizer.piece(*id)) : ""; };
  return chat_template->render({{"messages", messages},
                                {"add_generation_prompt", true},
                                {"bos_token", special(vocabulary.bos)},
                                {"eos_token", special(vocabulary.eos)}});
}

}  // namespace quire
