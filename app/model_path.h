// Which model a command runs: the one it is given, else the one the environment names (QUIRE_MODEL, set by ./run), else
// the default model in the cache folder, which cmake/default_model.sh fills.
//
// Errors   CheckError, one line that says what to do, when there is none of the three.
#pragma once
#include <string>

namespace quire {

std::string model_path(const std::string& given);  // "": none was given

}  // namespace quire
