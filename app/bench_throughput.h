// `quire bench throughput`: a whole model, from token ids to token ids, through the engine that also serves.
//
// The clock runs over engine steps on the calling thread: scheduling, forward passes and sampling are in it, text and
// sockets are not. Prompts are seeded random ids and are never answered from the prefix cache, except where a line says
// that it shares a prefix.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace quire::bench {

void add_throughput(CLI::App& bench, const std::string& command);

}  // namespace quire::bench
