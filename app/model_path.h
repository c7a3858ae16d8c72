// Which model a command runs: the one it is given, else the one the environment names (QUIRE_MODEL, set by ./run), else
// the default model in the cache folder, which cmake/default_model.sh fills.
//
// What is given is a path where there is such a file or folder, else a model's name at a hub (hub/model_name.h), which
// is fetched first, with progress.
//
// Errors   BadModel, one line that says what to do: neither path nor name, a name that leads nowhere, files that cannot
//          be had. CheckError when there is no model at all.
#pragma once
#include <string>

#include "base/check.h"
#include "progress.h"

namespace quire {

class BadModel : public CheckError {
 public:
  using CheckError::CheckError;
};

// `given` is "" where none was; `say_line` is told how fetching goes on.
std::string model_path(const std::string& given, const SayLine& say_line = say_on_stderr);

// Whether there is a model at a path, looked at before anything is started for it. Throws CheckError, one line: nothing
// is there, a file of another kind, or a folder that holds no model; where GGUF files lie in it, that one is to be
// named.
void check_model(const std::string& path);

}  // namespace quire
