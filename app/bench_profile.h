// `quire bench profile`: where the time of a step goes, by kind of operation.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace quire::bench {

void add_profile(CLI::App& bench, const std::string& command);

}  // namespace quire::bench
