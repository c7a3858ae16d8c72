// Whether there is a model at a path: looked at before anything is started for it.
//
// Errors   CheckError, one line: nothing is there, a file of another kind, or a folder that holds no model; where GGUF
//          files lie in it, that one of them is to be named.
#pragma once
#include <string>

namespace quire {

void check_model(const std::string& path);

}  // namespace quire
