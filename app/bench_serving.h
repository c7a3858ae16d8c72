// `quire bench serving`: a load on a server of OpenAI's or SGLang's interface, quire's or another's, over HTTP.
//
// The clock of a request runs from the moment that it was to begin to its last byte; the first token is the first event
// with text. Output tokens are what the server says that it made; where it does not say, events with text.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace quire::bench {

void add_serving(CLI::App& bench, const std::string& command);

}  // namespace quire::bench
