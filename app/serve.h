// `quire serve`: a model behind HTTP, with OpenAI's and SGLang's interfaces and a page to chat on.
//
// The server listens before the model is loaded and says so (/health: 503); SIGTERM and Ctrl-C let running requests
// finish, a second one does not.
#pragma once

namespace CLI {
class App;
}

namespace quire {

void add_serve(CLI::App& app);  // adds the subcommand

}  // namespace quire
