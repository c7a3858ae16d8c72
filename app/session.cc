#include "session.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <utility>

#include "attn/gpu_choice.h"
#include "base/check.h"
#include "dummy_vocabulary.h"
#include "engine/available_memory.h"
#include "engine/ngram_drafter.h"
#include "engine/pool_memory.h"
#include "model/step_arrays.h"
#include "model_path.h"
#include "own_heads.h"
#include "usage_error.h"

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

model::LoadFormat load_format(const SessionOptions& options) {
  return options.load_format == "dummy" ? model::LoadFormat::dummy : model::LoadFormat::automatic;
}

// A head that is named takes about what its file does, and as much for each token as a layer of the model. The one that
// comes with the program is small.
int64_t head_bytes(const std::string& path) {
  std::error_code unreadable;  // which loading it will tell
  const std::filesystem::path given(path);
  const auto file = std::filesystem::is_directory(given, unreadable) ? given / "model.safetensors" : given;
  const auto bytes = std::filesystem::file_size(file, unreadable);
  return unreadable ? 0 : static_cast<int64_t>(bytes);
}

model::EagleSpec like_a_layer_of(const model::ModelConfig& config) {
  model::EagleSpec head{};
  head.width = config.width;
  head.vocabulary = head.draft_vocabulary = config.vocabulary;
  head.layer = config.layers.front();
  return head;
}

GpuWish gpu_wish(const SessionOptions& options, const std::string& path, int64_t free) {
  check_model(path);
  const model::WeightFiles files(path, load_format(options));
  engine::EngineOptions engine = options.engine;
  engine.kv_type = kv_type_from(options.kv_type);
  const model::EagleSpec head = like_a_layer_of(files.config());
  const bool has_head = !options.draft_model.empty();
  engine::MemoryDemand demand = engine::memory_demand(engine, files.config(), has_head ? &head : nullptr, Device::cuda);
  demand.weights = model::device_weight_bytes(files) + (has_head ? head_bytes(options.draft_model) : 0);
  return {.fit = engine::fit_on_gpu(demand, {free, free, engine.mem_fraction_static}), .kv_type = engine.kv_type};
}

DeviceChoice device_of(const SessionOptions& options, const std::string& path) {
  const GpuFacts gpu = options.device == "cpu" ? GpuFacts{} : gpu_facts();
  return choose_device(options.device, gpu, gpu.count > 0 ? gpu_wish(options, path, gpu.free_bytes) : GpuWish{});
}

std::unique_ptr<cuda::Stream> stream_for(Device device) {
  return device == Device::cuda ? std::make_unique<cuda::Stream>() : nullptr;
}

text::Vocabulary vocabulary_of(const SessionOptions& options, const std::string& path, const model::Model& model) {
  const bool has_none =
      options.load_format == "dummy" && !std::filesystem::exists(std::filesystem::path(path) / "tokenizer.json");
  return has_none ? dummy_vocabulary(model.config().vocabulary) : text::vocabulary_from_path(path);
}

const SessionOptions& checked(const SessionOptions& options) {
  check_draft_options(options);
  return options;
}

std::optional<model::EagleHead> head_of(const SessionOptions& options, const model::Model& model, Exec& exec) {
  if (!options.draft_model.empty()) return model::EagleHead(options.draft_model, model, exec);
  const std::string& algorithm = options.speculative_algorithm;
  const bool is_default = algorithm.empty();
  if (!is_default && algorithm != "EAGLE3") return std::nullopt;
  std::optional<model::EagleHead> own = own_head(model, exec);
  check(own || is_default, "--speculative-algorithm EAGLE3: there is no head for ", model.config().name,
        ": name one with --speculative-draft-model-path");
  return own;
}

// By a text itself: also beside a head. On a GPU, where such steps do not overlap, without being asked for beside a
// head alone.
bool drafts_by_text(const SessionOptions& options, bool has_head, Device device) {
  if (options.disable_speculative_ngram) return false;
  if (options.speculative_algorithm.empty()) return has_head || device == Device::cpu;
  return options.speculative_algorithm != "NONE";
}

engine::EngineOptions engine_options(const SessionOptions& options, const model::Model& model,
                                     const model::EagleHead* head, const text::Tokenizer& tokenizer, Device device) {
  engine::EngineOptions engine = options.engine;
  engine.vocabulary = std::min(tokenizer.size(), model.config().vocabulary);
  engine.kv_type = kv_type_from(options.kv_type);
  if (drafts_by_text(options, head != nullptr, device)) engine.make_drafter = engine::ngram_drafters();
  engine.head = head;
  return engine;
}

attn::Problem attention_shapes(const model::ModelConfig& config, Dtype kv_type) {
  const model::AttentionSpec& heads = config.attention();
  return {.query_type = model::query_type_for(kv_type, Device::cuda),
          .kv_type = kv_type,
          .heads = heads.heads,
          .kv_heads = heads.kv_heads,
          .key_dim = heads.key_dim,
          .value_dim = heads.value_dim};
}

}  // namespace

Dtype kv_type_from(const std::string& name) {
  if (name == "f16") return Dtype::f16;
  if (name == "f32") return Dtype::f32;
  return name.starts_with("fp8") ? Dtype::f8e4m3 : Dtype::bf16;  // "auto" and SGLang's names of the two included
}

// CLI::Range takes it for a number in between.
std::string refuse_nan(const std::string& text) {
  return text.find_first_of("nN") == std::string::npos ? "" : "nan is no number";
}

Isa usable_isa(const std::string& name) {
  if (name.empty()) return best_isa();
  const Isa isa = isa_from(name);
  check_available(isa);
  return isa;
}

model::Model load_model(const std::string& path, Exec& exec, const SayLine& say_line, model::LoadFormat format,
                        const std::string& device) {
  check_model(path);
  Progress progress(say_line);
  const std::string name = std::filesystem::path(path).filename();
  int64_t shown = -1;
  const auto say_how_far = [&](int64_t done, int64_t total) {
    if (done == 0 && !device.empty()) say_line(device);  // the files turned out to be a model
    const int64_t percent = total ? 100 * done / total : 100;
    if (percent == std::exchange(shown, percent)) return;
    progress.say(cat("loading ", name, ": ", percent, " %"));
  };
  try {
    return model::Model(path, exec, say_how_far, format);
  } catch (const cuda::OutOfMemory& error) {
    throw cuda::OutOfMemory(cat("the weights of ", name, " do not fit: ", error.what(),
                                ": free the GPU's memory, take a smaller or a quantised model, or --device cpu"));
  }
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
  return app.add_option("--kv-cache-dtype", kv_type, "type of the keys and values that are kept; f32: on a CPU alone")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "bf16", "bfloat16", "f16", "f32", "fp8", "fp8_e4m3"}));
}

CLI::Option* add_isa_option(CLI::App& app, std::string& isa) {
  return app.add_option("--isa", isa, "instruction set; default: the best that works here")
      ->check(CLI::IsMember({"plain", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"}));
}

CLI::Option* add_device_option(CLI::App& app, std::string& device) {
  return app
      .add_option("--device", device,
                  "who computes; auto: a GPU of compute capability 9.0 that the model fits on, "
                  "else the CPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

CLI::Option* add_load_format_option(CLI::App& app, std::string& load_format) {
  return app
      .add_option("--load-format", load_format,
                  "dummy: a folder's config.json alone, with weights that mean nothing, for benchmarks")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "dummy"}));
}

CLI::Option* add_deterministic_option(CLI::App& app, bool& deterministic) {
  return app.add_flag("--deterministic", deterministic,
                      "on a GPU, too, the same bits in any batch, with any cached prefix and however a prompt is cut; "
                      "prompts are slower (a CPU does so always)");
}

void add_session_options(CLI::App& app, SessionOptions& options) {
  add_model_option(app, options.model);
  add_threads_option(app, options.threads);
  app.add_option("-c,--context-length", options.engine.context, "most tokens of a text; default: the model's own")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option(
         "--max-total-tokens", options.engine.max_total_tokens,
         "tokens whose keys and values are kept; default: four contexts, within a quarter of the free memory; on a "
         "GPU what --mem-fraction-static leaves")
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--mem-fraction-static", options.engine.mem_fraction_static,
                 "of a GPU's memory that is taken: keys and values have what all else leaves of it")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 0.99))
      ->check(refuse_nan);
  add_kv_type_option(app, options.kv_type);
  app.add_option("--page-size", options.engine.page_size, "tokens of a page of keys and values")
      ->capture_default_str()
      ->check(CLI::IsMember({1, 16, 32, 64, 128}));
  add_isa_option(app, options.isa);
  add_device_option(app, options.device);
  add_deterministic_option(app, options.engine.deterministic);
  app.add_option(
         "--speculative-algorithm", options.speculative_algorithm,
         "guess several tokens and verify them in one step, where that pays: NGRAM guesses by what the text has "
         "said before, EAGLE3 also by a head that was trained for the model; NONE: one token a step. The output "
         "is the same, on a GPU with --deterministic; default: EAGLE3 where there is a head for the model, else "
         "NGRAM, on a GPU NONE; EAGLE is another name of EAGLE3")
      ->transform([](const std::string& name) { return name == "EAGLE" ? "EAGLE3" : name; })
      ->check(CLI::IsMember({"NONE", "NGRAM", "EAGLE3", "EAGLE"}));
  app.add_option("--speculative-draft-model-path", options.draft_model,
                 "of EAGLE3: the head, a file of quire's or a folder of SpecForge's or EAGLE's; default: the one that "
                 "comes with "
                 "the program for this model")
      ->check([](const std::string& path) { return path.empty() ? "it names no file" : ""; });
  app.add_flag("--disable-speculative-ngram", options.disable_speculative_ngram,
               "guess by a head alone, not by what the text has said before");
  app.add_option("--speculative-num-draft-tokens", options.engine.speculative_num_draft_tokens,
                 "most tokens of a text that a step verifies, the newest included; fewer where they would not pay")
      ->capture_default_str()
      ->check(CLI::Range(2, 64));
  app.add_option("--speculative-eagle-topk", options.engine.speculative_eagle_topk,
                 "of EAGLE3: branches that the head follows at once; above 1 its guesses are trees, of which a step "
                 "verifies several guesses of the same token")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--speculative-num-steps", options.engine.speculative_num_steps,
                 "of EAGLE3: most tokens that the head guesses in a row; default: as many as are verified, of trees up "
                 "to 5")
      ->check(CLI::Range(1, 63));
  add_load_format_option(app, options.load_format);
}

void check_draft_options(const SessionOptions& options) {
  const engine::EngineOptions usual, &given = options.engine;
  const std::string& algorithm = options.speculative_algorithm;
  const auto refuse = [](const std::string& why) { throw UsageError(why); };
  const bool branches = given.speculative_eagle_topk != usual.speculative_eagle_topk ||
                        given.speculative_num_steps != usual.speculative_num_steps;
  if (algorithm != "EAGLE3" && !options.draft_model.empty())
    refuse("--speculative-draft-model-path is for --speculative-algorithm EAGLE3");
  if (algorithm != "EAGLE3" && branches)
    refuse("--speculative-eagle-topk and --speculative-num-steps go with --speculative-algorithm EAGLE3");
  if (options.disable_speculative_ngram && (algorithm == "NONE" || algorithm == "NGRAM"))
    refuse(cat("--disable-speculative-ngram leaves --speculative-algorithm ", algorithm, " nothing to guess by"));
  if (algorithm == "NONE" && given.speculative_num_draft_tokens != usual.speculative_num_draft_tokens)
    refuse("--speculative-num-draft-tokens does not go with --speculative-algorithm NONE");
  try {
    engine::check_draft_options(given);
  } catch (const CheckError& error) {
    refuse(error.what());
  }
}

void check_device(const SessionOptions& options, const std::string& path) { device_of(options, path); }

Session::Session(const SessionOptions& options, const SessionNews& news)
    : path(model_path(checked(options).model, news.progress)),
      device(device_of(options, path)),
      stream(stream_for(device.device)),
      exec({.threads = options.threads, .isa = usable_isa(options.isa), .stream = stream.get()}),
      model(times.timed("weights",
                        [&] { return load_model(path, exec, news.progress, load_format(options), device.why); })),
      head(times.timed("draft head", [&] { return head_of(options, model, exec); })),
      tokenizer(times.timed("tokenizer", [&] { return text::Tokenizer(vocabulary_of(options, path, model)); })),
      chat_template(template_of(tokenizer)),
      engine(model, engine_options(options, model, head ? &*head : nullptr, tokenizer, exec.device()), exec) {
  times.ended(device.device == Device::cuda ? "memory and graphs" : "memory");
  const engine::EngineOptions& used = engine.options();
  if (device.device == Device::cuda) {  // its pool is memory that it has
    const auto warning =
        attn::slow_attention(attention_shapes(model.config(), used.kv_type), used.deterministic, attn::cuda::device());
    if (warning) news.warning(*warning);
    return;
  }
  const int64_t token_bytes =
      engine::pool_token_bytes(model.config(), used.kv_type, used.page_size, head ? &head->spec() : nullptr);
  const auto warning = engine::tight_memory(token_bytes, used.max_total_tokens, engine::available_memory());
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
