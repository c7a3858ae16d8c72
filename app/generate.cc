// `quire generate`: continues a text, or answers a message, and is done. Text goes to standard output as it comes, and
// a line end after it; the figures go to standard error. `--json` prints one object with everything instead.
//
// When Ctrl-C ended the text, the exit code says so.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/utf8.h"
#include "commands.h"
#include "completion.h"
#include "read_input.h"
#include "sampling_options.h"
#include "session.h"
#include "usage_error.h"

namespace quire {
namespace {

using nlohmann::ordered_json;

struct GenerateOptions {
  SessionOptions session;
  SamplingOptions sampling;
  std::string prompt;
  std::string file;
  int32_t max_tokens = 256;
  std::vector<std::string> stops;
  bool chat = false;
  std::string system;
  bool ignore_eos = false;
  bool json = false;
  bool stream = true;
  int32_t logprobs = -1;
};

std::string prompt_of(const GenerateOptions& options) {
  if (!options.file.empty()) return read_input(options.file);
  return options.prompt == "-" ? read_input("-") : options.prompt;
}

std::vector<int32_t> prompt_tokens(const GenerateOptions& options, const std::string& prompt, const Session& session) {
  if (!options.chat) return session.tokenizer.encode(prompt, {.add_special = true, .parse_special = false});
  ordered_json messages = ordered_json::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", repaired_utf8(prompt)}});
  return session.tokenizer.encode(session.render(messages), {.add_special = false, .parse_special = true});
}

engine::Request request_of(const GenerateOptions& options, const std::string& prompt, const Session& session) {
  engine::Request request;
  request.prompt = prompt_tokens(options, prompt, session);
  check(!request.prompt.empty(), "the prompt is empty, and this model begins a text with no token of its own");
  request.sampling = sampling_params(options.sampling, {.temperature = 0});
  request.max_new_tokens = options.max_tokens;
  if (!options.ignore_eos) request.stop_ids = session.tokenizer.vocabulary().end_ids;
  request.top_logprobs = options.logprobs;
  return request;
}

// --- the answer as JSON

std::vector<int> bytes_of(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

ordered_json token_json(int32_t id, float logprob, const text::Tokenizer& tokenizer) {
  const std::string piece(tokenizer.piece(id));
  return {{"id", id}, {"token", piece}, {"bytes", bytes_of(piece)}, {"logprob", logprob}};
}

ordered_json logprobs_json(const Completion& completion, const text::Tokenizer& tokenizer) {
  ordered_json all = ordered_json::array();
  for (size_t i = 0; i < completion.logprobs.size(); ++i) {
    ordered_json token = token_json(completion.tokens[i], completion.logprobs[i].logprob, tokenizer);
    token["top"] = ordered_json::array();
    for (const auto& [id, logprob] : completion.logprobs[i].top)
      token["top"].push_back(token_json(id, logprob, tokenizer));
    all.push_back(std::move(token));
  }
  return all;
}

ordered_json answer_json(const Completion& completion, const Session& session, uint64_t seed) {
  const auto generated = completion.tokens.size();
  ordered_json json = {{"model", session.path},
                       {"text", completion.text},
                       {"tokens", completion.tokens},
                       {"finish_reason", to_string(completion.finish)},
                       {"seed", seed},
                       {"usage",
                        {{"prompt_tokens", completion.prompt_tokens},
                         {"cached_tokens", completion.cached_tokens},
                         {"completion_tokens", generated}}},
                       {"timings",
                        {{"first_token_s", completion.first_seconds},
                         {"total_s", completion.seconds},
                         {"prefill_tokens_per_s", completion.prefill_rate()},
                         {"decode_tokens_per_s", completion.decode_rate()}}}};
  if (const engine::Speculated& drafts = completion.speculated; drafts.verifications > 0)
    json["speculation"] = {{"spec_accept_length", drafts.accept_length()},
                           {"spec_accept_rate", drafts.accept_rate()},
                           {"spec_num_correct_drafts", drafts.correct},
                           {"spec_num_proposed_drafts", drafts.drafts},
                           {"spec_verify_ct", drafts.verifications}};
  if (!completion.logprobs.empty()) json["logprobs"] = logprobs_json(completion, session.tokenizer);
  return json;
}

// --- the command

void write_out(std::string_view text) { std::cout << text << std::flush; }

void show(const GenerateOptions& options, const Completion& completion, const Session& session, uint64_t seed) {
  if (options.json) {
    constexpr auto kReplaceBrokenUtf8 = ordered_json::error_handler_t::replace;  // pieces of tokens may be parts of one
    std::cout << answer_json(completion, session, seed).dump(2, ' ', false, kReplaceBrokenUtf8) << '\n';
    return;
  }
  if (!options.stream) write_out(completion.text);
  write_out("\n");
  std::cerr << "quire: " << to_string(completion) << '\n';
}

void generate(const GenerateOptions& options) {
  const std::string prompt = prompt_of(options);
  Session session(options.session);
  engine::Request request = request_of(options, prompt, session);
  const uint64_t seed = request.sampling.seed;
  const bool streams = options.stream && !options.json;
  const Interrupt interrupt;
  const Completion completion = complete(session, std::move(request),
                                         {.stops = options.stops, .drop_first_space = options.chat, .streams = streams},
                                         interrupt, [&](std::string_view text) {
                                           if (streams) write_out(text);
                                         });
  show(options, completion, session, seed);
  check(!std::cout.fail(), "standard output cannot be written");
  if (completion.finish == engine::Finish::cancelled) throw CLI::RuntimeError(kInterruptedExit);
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "continue a text, or answer one message");
  const auto options = std::make_shared<GenerateOptions>();
  command->add_option("prompt", options->prompt, "the text to continue; -: standard input");
  command->add_option("-f,--file", options->file, "read the prompt from this file")->excludes("prompt");
  command->add_option("-n,--max-tokens", options->max_tokens, "most new tokens; -1: until the end of the context")
      ->capture_default_str()
      ->check(CLI::Range(-1, 1 << 30));
  command->add_option("--stop", options->stops, "end before this text; may be repeated")->allow_extra_args(false);
  command->add_flag("--chat", options->chat, "the prompt is a message: apply the model's chat template");
  command->add_option("--system", options->system, "with --chat: what the model is told beforehand")->needs("--chat");
  command->add_flag("--ignore-eos", options->ignore_eos, "go on where the model would end the text");
  command->add_flag("--json", options->json, "print one object: text, tokens, usage, timings");
  command->add_flag("--stream,!--no-stream", options->stream,
                    "print text as it comes (the default), or all at the end");
  command->add_option("--logprobs", options->logprobs, "with --json: also each token's logprob and the N best")
      ->needs("--json")
      ->check(CLI::Range(0, 1000));
  add_sampling_options(*command, options->sampling, "0");
  add_session_options(*command, options->session);
  command->callback([=] {
    if (command->count("prompt") + command->count("--file") == 0)
      throw UsageError("give a prompt, --file FILE, or - for standard input");
    generate(*options);
  });
}

}  // namespace quire
