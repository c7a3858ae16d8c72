// The options of `quire serve`, named as SGLang's where they mean the same, and what follows from them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "http/server.h"
#include "sampling_options.h"
#include "serve/routes.h"
#include "serve/service.h"
#include "session.h"

namespace CLI {
class App;
}

namespace quire {

struct ServeOptions {
  SessionOptions session = {.engine = {}};
  http::ServerOptions http = {.port = 30000};
  bool disable_radix_cache = false;
  std::string config_file;
  std::vector<std::string> served_model_names;
  std::string chat_template_file;
  std::string tool_call_parser;
  std::string reasoning_parser;
  bool strict_fields = false;
  SamplingDefaults sampling_defaults;
  int32_t max_completion_tokens = 0;  // 0: no limit but the context's
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string admin_api_key;
  std::string metrics_key;
  std::vector<std::string> allow_origins;
  double queue_timeout = 0, run_timeout = 0, shutdown_timeout = 30, heartbeat_interval = 15;  // seconds
  std::string log_level = "info", log_format = "text";
};
void add_serve_options(CLI::App& command, ServeOptions& options);

// From the command line, the environment (QUIRE_API_KEY) and the key file; those without a name are called by their
// place, "key-1". Throws CheckError, one line: a file that cannot be read, a key or an origin that cannot be one.
std::vector<serve::ApiKey> api_keys(const ServeOptions& options);

SessionOptions session_options(const ServeOptions& options);
http::ServerOptions http_options(
    const ServeOptions& options);  // an address may always send one body of the largest size
serve::ServiceOptions service_options(const ServeOptions& options, const std::string& model_path);
// ServiceOptions have it; engine: as it is, with defaults filled in. Where there are several keys the queue is theirs.
int32_t most_jobs_of_a_key(const ServeOptions& options, const engine::EngineOptions& engine);

// What callers call a model that was given no name: the file's or folder's, without the type of its weights.
std::string name_of_model(const std::string& path);

}  // namespace quire
