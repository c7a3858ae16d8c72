// Everything that running a model takes, loaded together: threads, weights, tokenizer, chat template, engine. For the
// programs of one person at a terminal, who steps the engine from the thread that also shows the text.
//
// Errors   CheckError, one line, for files that cannot be used and options that do not fit them.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/exec.h"
#include "device_choice.h"
#include "engine/engine.h"
#include "model/eagle_head.h"
#include "model/model.h"
#include "progress.h"
#include "start_times.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace quire {

struct SessionOptions {
  std::string model = {};  // "": as model_path() says
  int threads = 0;         // 0: as many as the process may use
  std::string isa = {};    // "": the best that works here
  std::string kv_type = "bf16";
  std::string device = "auto";             // as choose_device() takes it
  std::string load_format = "auto";        // or "dummy"
  std::string speculative_algorithm = {};  // "": what there is; on a GPU nothing without a head
  std::string draft_model = {};            // of EAGLE3: the head's file or folder; "": the program's own
  bool disable_speculative_ngram = false;
  engine::EngineOptions engine{.max_running_requests = 1};
};
void add_session_options(CLI::App& app, SessionOptions& options);

// Options that commands without a session have, too, by the same names.
CLI::Option* add_model_option(CLI::App& app, std::string& model);    // for model_path()
CLI::Option* add_model_argument(CLI::App& app, std::string& model);  // which may also stand alone, without its name
CLI::Option* add_threads_option(CLI::App& app, int& threads);
CLI::Option* add_kv_type_option(CLI::App& app, std::string& kv_type);
CLI::Option* add_isa_option(CLI::App& app, std::string& isa);
CLI::Option* add_device_option(CLI::App& app, std::string& device);
CLI::Option* add_load_format_option(CLI::App& app, std::string& load_format);
CLI::Option* add_deterministic_option(CLI::App& app, bool& deterministic);
std::string refuse_nan(const std::string& text);  // a check of options that are numbers
Dtype kv_type_from(const std::string& name);      // of --kv-cache-dtype
Isa usable_isa(const std::string& name);          // of --isa; throws CheckError where this machine lacks it

// Checks that there is one, and shows progress. device: a line that says who will compute it and why; "": none.
model::Model load_model(const std::string& path, Exec& exec, const SayLine& say_line = say_on_stderr,
                        model::LoadFormat format = model::LoadFormat::automatic, const std::string& device = {});

// Throws UsageError where options of drafts do not go together: before anything is fetched, loaded or started for them.
void check_draft_options(const SessionOptions& options);

// Throws UnusableDevice where a GPU is asked for and cannot be used: before anything is started for it.
void check_device(const SessionOptions& options, const std::string& path);

// Who is told what goes on while a session is made, and what should not stay so, as memory that is tight.
struct SessionNews {
  SayLine progress = say_on_stderr, warning = say_on_stderr;
};

class Session {
 public:
  explicit Session(const SessionOptions& options, const SessionNews& news = {});

  StartTimes times;  // of what follows, in its order
  const std::string path;
  const DeviceChoice device;
  const std::unique_ptr<cuda::Stream> stream;  // null: a CPU computes
  Exec exec;
  const model::Model model;
  const std::optional<model::EagleHead> head;  // that drafts
  const text::Tokenizer tokenizer;
  const std::optional<text::ChatTemplate> chat_template;
  engine::Engine engine;

  // The text that the template makes of the messages, up to where the assistant's answer begins. Throws CheckError when
  // the model has no template.
  std::string render(const nlohmann::ordered_json& messages) const;
};

}  // namespace quire
