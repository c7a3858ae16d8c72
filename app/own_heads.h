// Draft heads that come with the program (models/ of the source; `share/quire/heads` beside the folder that it lies
// in).
#pragma once
#include <optional>

#include "base/exec.h"
#include "model/eagle_head.h"
#include "model/model.h"

namespace quire {

// The one that was made for this model; none where there is none, or its file cannot be used: nobody has asked for it.
std::optional<model::EagleHead> own_head(const model::Model& model, Exec& exec);

}  // namespace quire
