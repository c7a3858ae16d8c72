// Models by name: from ORG/NAME to a path on this machine, fetching what is missing.
//
// The hub is asked which files the name means today; those that the cache has are not fetched again. Where the hub is
// not reached, or must not be (offline), the cache's own state of that revision is used.
//
// Errors   NoSuchModel: nothing of that name, or not reached and not in the cache.
//          CheckError: not allowed, nothing that quire runs, too little room on the disk, wrong bytes.
//          One line each, that says what to do.
#pragma once
#include <filesystem>

#include "hub/errors.h"
#include "hub/fetch_events.h"
#include "hub/model_name.h"
#include "hub/settings.h"

namespace quire::hub {

// A GGUF file, or a folder as Hugging Face's programs have it.
std::filesystem::path fetch_model(const ModelName& name, const Settings& settings, const FetchEvents& events);

}  // namespace quire::hub
