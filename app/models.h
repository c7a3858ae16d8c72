// `quire models`: what is in the cache of models that were named, and fetching into it and removing from it.
#pragma once

namespace CLI {
class App;
}

namespace quire {

void add_models(CLI::App& app);

}  // namespace quire
