// `quire template`: what a chat template makes of a conversation, for people who debug prompts.
//
//   quire template [FILE|-] [--now TIME]                         the template of a model
//   quire template --chat-template FILE [FILE|-] [--now TIME]    one in a file of its own
//
// The file is a JSON array of messages, or an object with all that the template reads: messages, tools,
// add_generation_prompt, bos_token and so on. The rendered text is printed as it is, without a line end of its own.
#pragma once

namespace CLI {
class App;
}

namespace quire {

// Adds the subcommand. Its callback throws CLI::RuntimeError with the exit code 2 after one line on standard error,
// when the template, the context or the rendering is bad.
void add_template(CLI::App& app);

}  // namespace quire
