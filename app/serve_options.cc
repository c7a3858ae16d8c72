#include "serve_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>

#include "base/check.h"
#include "base/in_quotes.h"
#include "hub/cache.h"
#include "read_input.h"

namespace quire {
namespace {

constexpr double kMostSeconds = 1e6;

void add_model_options(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Model";
  for (const char* name : {"--model", "--load-format", "--context-length"}) command.get_option(name)->group(kGroup);
  command
      .add_option("--served-model-name", options.served_model_names,
                  "what callers call it; more names after commas, or by repeating this; default: its file's name")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(kGroup);
  command
      .add_option("--chat-template", options.chat_template_file, "a file with a template instead of the model's own")
      ->group(kGroup);
  command
      .add_option("--tool-call-parser", options.tool_call_parser,
                  "how the model writes tool calls; default: as its chat template shows")
      ->check(CLI::IsMember({"hermes", "llama3", "mistral"}))
      ->group(kGroup);
  command
      .add_option("--reasoning-parser", options.reasoning_parser,
                  "how the model writes what it thinks, which becomes reasoning_content; default: as its chat template "
                  "shows")
      ->check(CLI::IsMember({"qwen3", "smollm3", "deepseek-r1", "none"}))
      ->group(kGroup);
  add_sampling_defaults(command, options.sampling_defaults);
  command.get_option("--sampling-defaults")->group(kGroup);
}

void add_engine_options(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Engine";
  engine::EngineOptions& engine = options.session.engine;
  for (const char* name : {"--device", "--deterministic", "--max-total-tokens", "--mem-fraction-static",
                           "--kv-cache-dtype", "--page-size", "--threads", "--isa", "--speculative-algorithm",
                           "--speculative-draft-model-path", "--disable-speculative-ngram",
                           "--speculative-num-draft-tokens", "--speculative-eagle-topk", "--speculative-num-steps"})
    command.get_option(name)->group(kGroup);
  command
      .add_option("--max-running-requests", engine.max_running_requests,
                  "computed together; others wait; default: 64, on a GPU 256")
      ->check(CLI::Range(1, 4096))
      ->group(kGroup);
  command.add_option("--max-queued-requests", engine.max_queued_requests, "that wait; more get 503")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20))
      ->group(kGroup);
  command
      .add_option("--chunked-prefill-size", engine.prefill_chunk,
                  "most tokens of prompts in one step; default: 512, on a GPU 8192")
      ->check(CLI::Range(1, 1 << 16))
      ->group(kGroup);
  command
      .add_option("--max-completion-tokens", options.max_completion_tokens,
                  "of an answer; a call that asks for more gets 400; default: what the context has room for")
      ->check(CLI::Range(1, 1 << 24))
      ->group(kGroup);
  command
      .add_flag("--disable-radix-cache", options.disable_radix_cache, "compute every prompt anew, share no prefixes")
      ->group(kGroup);
}

void add_server_options(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Server";
  command.add_option("--host", options.http.host, "address to listen on; 0.0.0.0: all of this machine's")
      ->capture_default_str()
      ->group(kGroup);
  command.add_option("--port", options.http.port, "0: any free one")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->group(kGroup);
  command.add_option("--http-threads", options.http.threads, "for connections; the engine has its own")
      ->capture_default_str()
      ->check(CLI::Range(1, 64))
      ->group(kGroup);
  command.add_option("--max-body-bytes", options.http.limits.body_bytes, "of a request; larger ones get 413")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{1} << 32))
      ->group(kGroup);
  const auto seconds = [&](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(0.0, kMostSeconds))
        ->check(refuse_nan)
        ->group(kGroup);
  };
  seconds("--queue-timeout", options.queue_timeout,
          "seconds after which a request that still waits gets 503; 0: never");
  seconds("--run-timeout", options.run_timeout, "seconds after which a request ends with what it has; 0: never");
  seconds("--shutdown-timeout", options.shutdown_timeout, "seconds that running requests have after SIGTERM or Ctrl-C");
  seconds("--heartbeat-interval", options.heartbeat_interval,
          "seconds between the comments in a stream that waits for its first token; 0: none");
  command
      .add_flag("--strict-fields", options.strict_fields,
                "400 for parameters that are not known, instead of an x-quire-ignored header that names them")
      ->group(kGroup);
  command.add_option("--log-level", options.log_level, "the least that a line of the log must matter")
      ->capture_default_str()
      ->check(CLI::IsMember({"error", "warn", "warning", "info", "debug"}))
      ->group(kGroup);
  command.add_option("--log-format", options.log_format, "for people, or a JSON object a line")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json"}))
      ->group(kGroup);
  command
      .add_option("--config", options.config_file,
                  "TOML file with these options, as in: port = 30000; the command line goes before")
      ->group(kGroup);
}

void add_access_options(CLI::App& command, ServeOptions& options) {
  constexpr const char* kGroup = "Access";
  command
      .add_option(
          "--api-key", options.api_keys,
          "that callers must present; may be repeated. $QUIRE_API_KEY is one, too, and stands in no process list")
      ->allow_extra_args(false)
      ->group(kGroup);
  command
      .add_option("--api-key-file", options.api_key_file,
                  "a key a line: KEY [SALT] [name=NAME]. Keys with different salts share no cached prefixes; the name "
                  "is what the log calls it")
      ->group(kGroup);
  command
      .add_option("--admin-api-key", options.admin_api_key,
                  "for what concerns all callers: flushing the cache, aborting others' requests, raising a priority; "
                  "default: $QUIRE_ADMIN_API_KEY; without one the only key may, and of several none")
      ->envname("QUIRE_ADMIN_API_KEY")
      ->group(kGroup);
  command.add_option("--metrics-key", options.metrics_key, "that /metrics asks for; default: /metrics is open")
      ->group(kGroup);
  command
      .add_option(
          "--allow-origin", options.allow_origins,
          "whose web pages may call from a browser, as https://chat.example, or *; may be repeated; default: only the "
          "server's own")
      ->allow_extra_args(false)
      ->group(kGroup);
  command
      .add_option("--ssl-certfile", options.http.certificate_file,
                  "PEM; with it the server speaks TLS, and reads its files again on SIGHUP")
      ->group(kGroup);
  command.add_option("--ssl-keyfile", options.http.key_file, "PEM")->group(kGroup);
  command.add_option("--ssl-keyfile-password", options.http.key_password, "of a key that is encrypted")->group(kGroup);
}

void check_key(const std::string& key) {
  check(!key.empty(), "an API key is empty");
  for (const char letter : key)
    check(letter > ' ' && letter < 0x7f, "an API key has characters that a header cannot carry");
}

// A key that is given twice is one key.
void drop_repeated(std::vector<serve::ApiKey>& keys) {
  for (size_t i = 0; i < keys.size(); ++i)
    keys.erase(std::remove_if(keys.begin() + static_cast<std::ptrdiff_t>(i) + 1, keys.end(),
                              [&](const serve::ApiKey& later) { return later.key == keys[i].key; }),
               keys.end());
}

// "https://chat.example:8080", as browsers send it.
void check_origin(const std::string& origin) {
  const size_t scheme = origin.find("://");
  check(origin == "*" || origin == "null" ||
            (scheme != origin.npos && scheme > 0 && origin.size() > scheme + 3 &&
             origin.find_first_of("/ ", scheme + 3) == origin.npos),
        "--allow-origin takes a scheme and a host, as https://chat.example, or *; not ", origin);
}

void read_keys(const std::string& path, std::vector<serve::ApiKey>& keys) {
  constexpr std::string_view kName = "name=";
  std::istringstream lines(read_file(path, "key file"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    serve::ApiKey key;
    if (!(words >> key.key) || key.key.starts_with('#')) continue;
    for (std::string word; words >> word;) {
      const bool is_name = word.starts_with(kName);
      std::string& place = is_name ? key.name : key.salt;
      check(place.empty(), "the key file ", path, " has a line with more than KEY [SALT] [name=NAME]");
      place = is_name ? word.substr(kName.size()) : word;
    }
    keys.push_back(std::move(key));
  }
  check(!keys.empty(), "the key file ", path, " has no keys");
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& options) {
  add_session_options(command, options.session);
  add_model_options(command, options);
  add_engine_options(command, options);
  add_server_options(command, options);
  add_access_options(command, options);
}

std::vector<serve::ApiKey> api_keys(const ServeOptions& options) {
  std::vector<serve::ApiKey> keys;
  if (!options.api_key_file.empty()) read_keys(options.api_key_file, keys);
  for (const std::string& key : options.api_keys) keys.push_back({.key = key});
  if (const char* key = std::getenv("QUIRE_API_KEY"); key && *key) keys.push_back({.key = key});
  drop_repeated(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    check_key(keys[i].key);
    if (keys[i].name.empty()) keys[i].name = cat("key-", i + 1);
  }
  for (const std::string& origin : options.allow_origins) check_origin(origin);
  if (!options.metrics_key.empty()) check_key(options.metrics_key);
  if (!options.admin_api_key.empty()) check_key(options.admin_api_key);
  return keys;
}

SessionOptions session_options(const ServeOptions& options) {
  SessionOptions session = options.session;
  session.engine.prefix_cache = !options.disable_radix_cache;
  return session;
}

http::ServerOptions http_options(const ServeOptions& options) {
  http::ServerOptions http = options.http;
  const bool has_odd_character =
      std::any_of(http.host.begin(), http.host.end(), [](unsigned char c) { return c <= ' ' || c == 0x7f; });
  check(!http.host.empty() && !has_odd_character, "--host: ", in_quotes(http.host), " is no address");
  http.limits.peer_body_bytes = std::max(http.limits.peer_body_bytes, http.limits.body_bytes);
  http.limits.all_body_bytes = std::max(http.limits.all_body_bytes, 4 * http.limits.peer_body_bytes);
  return http;
}

serve::ServiceOptions service_options(const ServeOptions& options, const std::string& model_path) {
  serve::ServiceOptions service{.model_path = model_path,
                                .tool_call_parser = options.tool_call_parser,
                                .reasoning_parser = options.reasoning_parser,
                                .queue_time = milliseconds(options.queue_timeout),
                                .run_time = milliseconds(options.run_timeout),
                                .heartbeat = milliseconds(options.heartbeat_interval),
                                .strict_fields = options.strict_fields,
                                .max_completion_tokens = options.max_completion_tokens};
  std::vector<std::string> names = options.served_model_names;
  for (const std::string& name : names) check(!name.empty(), "--served-model-name: a name is empty");
  if (names.empty()) names = {name_of_model(model_path)};
  service.served_model_name = names[0];
  service.aliases.assign(names.begin() + 1, names.end());
  if (!options.chat_template_file.empty())
    service.chat_template = read_file(options.chat_template_file, "chat template");
  return service;
}

int32_t most_jobs_of_a_key(const ServeOptions& options, const engine::EngineOptions& engine) {
  if (api_keys(options).size() < 2) return 0;
  return std::max(1, (engine.max_running_requests + engine.max_queued_requests) / 2);
}

std::string name_of_model(const std::string& path) {
  if (const auto name = hub::name_of_snapshot(path)) return *name;
  std::filesystem::path file(path);
  if (!file.has_filename()) file = file.parent_path();  // a folder with a slash at its end
  if (file.extension() == ".gguf") file.replace_extension();
  static const std::regex kWeights("[.-](i?q[0-9][a-z0-9_]*|b?f16|f32)$", std::regex::icase);
  return std::regex_replace(file.filename().string(), kWeights, "");
}

}  // namespace quire
