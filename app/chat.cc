// `quire chat`: a conversation at the terminal, or one turn for each line of a pipe.
//
// When Ctrl-C ended a conversation that nobody types, or a message of one was refused, the exit code says so.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <memory>

#include "commands.h"
#include "completion.h"
#include "conversation.h"
#include "line_reader.h"
#include "sampling_options.h"
#include "session.h"

namespace quire {
namespace {

constexpr float kTemperature = 0.7f;
constexpr int kRefusedExit = 1;
constexpr const char* kHelp =
    "  /help           this\n"
    "  /reset          forget the conversation\n"
    "  /system TEXT    tell the model who it is from now on; without a text: nothing\n"
    "  /stats          figures of the last answer and of the whole chat\n"
    "  /save FILE      write the conversation to a file, as JSON\n"
    "  /quit           leave, as Ctrl-D and Ctrl-C at an empty prompt do\n"
    "Ctrl-C stops an answer and clears what is typed. Pasted text may have several lines.\n";

struct ChatOptions {
  SessionOptions session;
  SamplingOptions sampling;
  SamplingDefaults sampling_defaults;
  std::string system;
  int32_t max_tokens = 1024;
  std::vector<std::string> stops;
  bool stats = false;
};

struct Totals {
  int answers = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  engine::Speculated speculated = {};

  void add(const Completion& answer) {
    ++answers;
    prompt_tokens += answer.prompt_tokens;
    cached_tokens += answer.cached_tokens;
    new_tokens += static_cast<int64_t>(answer.tokens.size());
    speculated.add(answer.speculated);
  }
};

class Chat {
 public:
  explicit Chat(const ChatOptions& options);
  void run();

 private:
  bool obey(const std::string& line);  // false: leave
  void answer(const std::string& message);
  engine::Request request_for(std::vector<int32_t> prompt);
  void show_stats() const;
  void save(const std::string& path) const;
  int32_t tokens_for_answer() const;

  const ChatOptions options_;
  Session session_;
  Conversation conversation_;
  ops::SamplingParams sampling_;
  Interrupt interrupt_;
  LineReader lines_{interrupt_};
  std::optional<Completion> last_;
  Totals totals_;
  bool refused_ = false;  // a message, at least
};

void note(const std::string& text) { std::cerr << "quire: " << text << std::endl; }

Chat::Chat(const ChatOptions& options)
    : options_(options),
      session_(options.session),
      conversation_(session_, options.system),
      sampling_(sampling_params(options.sampling, default_sampling(options.sampling_defaults, session_.path,
                                                                   {.temperature = kTemperature}))) {
  session_.render({{{"role", "user"}, {"content", ""}}});  // a model that cannot chat says so before anybody types
}

void Chat::run() {
  if (lines_.typed())
    note(cat(session_.model.config().name, ", context of ", session_.engine.options().context,
             " tokens; /help shows what else can be typed"));
  bool asked = false;
  while (const std::optional<std::string> line = lines_.next("> ")) {
    asked = true;
    if (line->starts_with('/')) {
      if (!obey(*line)) return;
    } else if (!line->empty()) {
      answer(*line);
    }
    if (interrupt_.happened() && !lines_.typed()) throw CLI::RuntimeError(kInterruptedExit);
    interrupt_.forget();
  }
  if (!asked && !lines_.typed())
    note("nothing was asked: type at a terminal, pipe in a line for each turn, or use `quire generate`");
  if (refused_ && !lines_.typed()) throw CLI::RuntimeError(kRefusedExit);
}

bool Chat::obey(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string command = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (command == "/quit" || command == "/exit") return false;
  if (command == "/help") {
    std::cout << kHelp << std::flush;
  } else if (command == "/reset") {
    conversation_.reset();
  } else if (command == "/system") {
    conversation_.set_system(rest);
  } else if (command == "/stats") {
    show_stats();
  } else if (command == "/save") {
    save(rest);
  } else {
    note(cat("there is no ", command, "; /help lists the commands"));
  }
  return true;
}

// What is wrong with one message is said, and the conversation goes on. Nobody may read it where nobody types, so there
// the exit code says it too.
void Chat::answer(const std::string& message) {
  try {
    const int32_t context = session_.engine.options().context;
    Conversation::Prompt prompt = conversation_.ask(message, context, tokens_for_answer());
    if (prompt.dropped > 0)
      note(cat("the conversation is longer than the context: the oldest ", prompt.dropped, " turns are forgotten"));
    last_ =
        complete(session_, request_for(std::move(prompt.tokens)), {.stops = options_.stops, .drop_first_space = true},
                 interrupt_, [](std::string_view text) { std::cout << text << std::flush; });
    std::cout << std::endl;
    conversation_.answered(*last_);
    totals_.add(*last_);
    if (options_.stats) note(cat(*last_));
  } catch (const CheckError& error) {
    note(error.what());
    refused_ = true;
  }
}

// A seed is for a whole chat: each answer has its own numbers, because the engine draws by seed and position.
engine::Request Chat::request_for(std::vector<int32_t> prompt) {
  engine::Request request;
  request.prompt = std::move(prompt);
  request.sampling = sampling_;
  request.max_new_tokens = options_.max_tokens;
  request.stop_ids = session_.tokenizer.vocabulary().end_ids;
  return request;
}

// An answer gets a quarter of the context at least, or all it may have where that is less.
int32_t Chat::tokens_for_answer() const {
  const int32_t quarter = std::max(1, session_.engine.options().context / 4);
  return options_.max_tokens < 0 ? quarter : std::min(quarter, options_.max_tokens);
}

void Chat::show_stats() const {
  if (!last_) return note("no answer yet");
  note(cat("last answer: ", *last_));
  note(cat(totals_.answers, " answers: ", totals_.prompt_tokens, " prompt tokens, of which ", totals_.cached_tokens,
           " were still known and ", totals_.prompt_tokens - totals_.cached_tokens, " computed; ", totals_.new_tokens,
           " new tokens", drafts_text(totals_.speculated)));
}

void Chat::save(const std::string& path) const {
  if (path.empty()) return note("/save needs the name of a file");
  std::ofstream file(path);
  file << conversation_.messages().dump(2) << '\n';
  file.close();
  note(file.fail() ? cat("cannot write ", path) : cat("the conversation is in ", path));
}

}  // namespace

void add_chat(CLI::App& app) {
  CLI::App* command = app.add_subcommand("chat", "talk with the model, at a terminal or line by line through a pipe");
  const auto options = std::make_shared<ChatOptions>();
  command->add_option("--system", options->system, "what the model is told beforehand");
  command
      ->add_option("-n,--max-tokens", options->max_tokens, "most tokens of an answer; -1: until the end of the context")
      ->capture_default_str()
      ->check(CLI::Range(-1, 1 << 30));
  command->add_option("--stop", options->stops, "end an answer before this text; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--stats", options->stats, "after each answer its figures, as /stats shows them");
  add_sampling_options(*command, options->sampling, "what the model's makers advise, else 0.7");
  add_sampling_defaults(*command, options->sampling_defaults);
  add_session_options(*command, options->session);
  command->callback([=] { Chat(*options).run(); });
}

}  // namespace quire
