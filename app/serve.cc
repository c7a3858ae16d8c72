// `quire serve`: a model behind HTTP, with OpenAI's and SGLang's interfaces and a page to chat on.
//
// The server listens before the model is loaded and says so (/health: 503); SIGTERM and Ctrl-C let running requests
// finish, a second one does not.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/check.h"
#include "base/cuda.h"
#include "commands.h"
#include "config_file.h"
#include "exit_status.h"
#include "http/server.h"
#include "model_path.h"
#include "serve/browser_guard.h"
#include "serve/grammar_tokens.h"
#include "serve/routes.h"
#include "serve/service.h"
#include "serve_log.h"
#include "serve_options.h"
#include "stop_signals.h"

namespace quire {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The first token of all finds its memory untouched, which takes long; nobody should wait for that.
void warm_up(engine::Engine& engine) {
  engine::Request request;
  request.prompt = {0};
  request.max_new_tokens = 2;
  engine.submit(std::move(request), [](const engine::Output&) {});
  try {
    while (engine.step()) {
    }
  } catch (const cuda::DeviceError& error) {
    end_at_once(error);
  }
}

// An engine that computes nothing any more ends the server, as the signal to stop does.
SessionOptions with_model(SessionOptions session, const std::string& path) {
  session.model = path;
  session.engine.on_broken = [] { std::raise(SIGTERM); };
  return session;
}

serve::ServiceOptions service_options_of(const ServeOptions& options, const std::string& path) {
  serve::ServiceOptions service = service_options(options, path);
  service.sampling = default_sampling(options.sampling_defaults, path);
  return service;
}

serve::ServiceOptions with_queue_of(const engine::EngineOptions& engine, const ServeOptions& options,
                                    serve::ServiceOptions service) {
  service.most_jobs_of_a_key = most_jobs_of_a_key(options, engine);
  return service;
}

// The parts of a service over a loaded model, in the order in which they need each other.
struct Loaded {
  Loaded(const ServeOptions& options, const std::string& path, const SessionNews& news,
         const serve::ServiceOptions& service_options)
      : session(with_model(session_options(options), path), news),
        grammars(serve::grammar_tokens(session.tokenizer, session.model.config().vocabulary)),
        service({session.tokenizer, session.model, session.engine, grammars},
                with_queue_of(session.engine.options(), options, service_options)) {
    session.times.ended("grammars");
    warm_up(session.engine);
    session.engine.start();
    session.times.ended("warm-up");
  }

  Session session;
  const grammar::Compiler grammars;
  serve::Service service;
};

class ServeCommand {
 public:
  explicit ServeCommand(const ServeOptions& options)
      : options_(options),
        log_(log_level_from(options.log_level), options.log_format == "json" ? LogFormat::json : LogFormat::text),
        signals_(speaks_tls() ? StopSignals::Hangup::reloads : StopSignals::Hangup::ends_it),
        routes_(route_options()),
        server_(http_options(options),
                [this](std::shared_ptr<http::Exchange> exchange) { routes_.handle(std::move(exchange)); },
                {.judge = [this](const http::Request& head) { return routes_.judge(head); },
                 .on_refused = [this](const http::Refused& refused) { routes_.report(refused); }}) {}

  void run();

 private:
  serve::RouteOptions route_options() const;
  bool speaks_tls() const { return !options_.http.certificate_file.empty(); }
  std::string address() const;
  void warn_of_open_doors() const;
  void reload_certificate();
  void shut_down(Loaded& loaded);
  bool wait_until(const std::function<bool()>& reached, Clock::time_point end);

  const ServeOptions& options_;
  const ServeLog log_;
  StopSignals signals_;
  std::unique_ptr<Loaded> loaded_;  // outlives all calls
  serve::Routes routes_;
  http::Server server_;
};

serve::RouteOptions ServeCommand::route_options() const {
  return {.keys = api_keys(options_),
          .admin_key = options_.admin_api_key,
          .metrics_key = options_.metrics_key,
          .host = options_.http.host,
          .allow_origins = options_.allow_origins,
          .on_answered = [this](const serve::Answered& answered) { log_.answered(answered); }};
}

bool is_any_address(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

std::string ServeCommand::address() const {
  const std::string& host = options_.http.host;
  const std::string shown = is_any_address(host)          ? "localhost"
                            : host.find(':') == host.npos ? host
                                                          : cat("[", host, "]");
  return cat(speaks_tls() ? "https" : "http", "://", shown, ":", server_.port(), "/");
}

void ServeCommand::warn_of_open_doors() const {
  const std::string& host = options_.http.host;
  if (!serve::is_loopback(host) && api_keys(options_).empty())
    log_.say(LogLevel::warn, cat("everybody who reaches ", host, " can use this server: --api-key sets a key"));
}

void ServeCommand::run() {
  const SessionNews news{.progress = [this](const std::string& line) { log_.say(LogLevel::info, line); },
                         .warning = [this](const std::string& line) { log_.say(LogLevel::warn, line); }};
  check_draft_options(options_.session);
  const std::string path = model_path(options_.session.model, news.progress);  // fetched before anybody is let in
  check_model(path);
  check_device(options_.session, path);
  const serve::ServiceOptions service = service_options_of(options_, path);
  warn_of_open_doors();
  server_.start();
  log_.say(LogLevel::info, cat("listening on ", address(), " while ", path, " is loaded"));
  loaded_ = std::make_unique<Loaded>(options_, path, news, service);
  signals_.wait_from_now_on();
  routes_.set_service(&loaded_->service);
  log_.say(LogLevel::info, cat("loaded in ", loaded_->session.times.text()));
  std::printf("quire: %s ready on %s (chat page), OpenAI API at %sv1\n",
              loaded_->service.options().served_model_name.c_str(), address().c_str(), address().c_str());
  std::fflush(stdout);
  while (signals_.wait() == Signal::reload) reload_certificate();
  shut_down(*loaded_);
  // Whoever frees what a failed device has may wait for it for ever.
  if (loaded_->session.engine.has_broken_down()) end_at_once(CheckError("the engine has broken down"));
}

void ServeCommand::reload_certificate() {
  try {
    server_.reload_certificate();
    log_.say(LogLevel::info, "the certificate was read again, for connections from now on");
  } catch (const CheckError& error) {
    log_.say(LogLevel::error, cat("the certificate stays as it was: ", error.what()));
  }
}

// Nothing new; what runs may end; then answers are sent to their end.
void ServeCommand::shut_down(Loaded& loaded) {
  const auto time =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.shutdown_timeout));
  loaded.service.drain();
  log_.say(LogLevel::info, cat("shutting down; ", loaded.service.jobs(), " requests may finish within ",
                               static_cast<int64_t>(options_.shutdown_timeout), " s or until the next signal"));
  const Clock::time_point end = Clock::now() + time;
  wait_until([&] { return loaded.service.jobs() == 0; }, end);
  if (const int32_t left = loaded.service.jobs()) log_.say(LogLevel::warn, cat(left, " requests are cancelled"));
  loaded.session.engine.stop();
  server_.stop_accepting();
  wait_until([&] { return server_.stats().connections == 0; }, std::max(end, Clock::now() + 2s));
  server_.stop();
}

// False: a signal came, or the time is over.
bool ServeCommand::wait_until(const std::function<bool()>& reached, Clock::time_point end) {
  while (!reached())
    if (Clock::now() >= end || signals_.wait_for(10ms)) return false;
  return true;
}

}  // namespace

void add_serve(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("serve", "serve a model over HTTP: OpenAI's and SGLang's interfaces, a chat page");
  const auto options = std::make_shared<ServeOptions>();
  add_serve_options(*command, *options);
  command->callback([=] {
    if (!options->config_file.empty()) apply_config_file(*command, options->config_file);
    ServeCommand(*options).run();
  });
}

}  // namespace quire
