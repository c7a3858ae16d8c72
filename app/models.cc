// `quire models`: what is in the cache of models that were named, and fetching into it and removing from it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"
#include "base/size_text.h"
#include "commands.h"
#include "fetch_display.h"
#include "hub/cache.h"
#include "hub/hub.h"
#include "one_line_errors.h"

namespace quire {
namespace {

using hub::CachedModel;
using hub::ModelName;

hub::Settings hub_settings() { return hub::settings_from(hub::process_environment); }

ModelName model_name_from(const std::string& text) {
  const auto name = hub::parse_model_name(text);
  check(name.has_value(), in_quotes(text),
        " is no model's name, which would be ORG/NAME, ORG/NAME@REVISION or ORG/NAME:FILE");
  return *name;
}

// --- the list

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += cat(text.empty() ? "" : ", ", part);
  return text;
}

std::string revision_text(const CachedModel& model) {
  std::vector<std::string> shown;
  for (const std::string& revision : model.revisions) shown.push_back(in_quotes_if_odd(revision));
  return shown.empty() ? model.commit.substr(0, 12) : joined(shown);
}

// GGUF files by name, since each is a model; of a folder's, how many there are.
std::string files_text(const CachedModel& model) {
  std::vector<std::string> ggufs;
  for (const std::string& file : model.files)
    if (file.ends_with(".gguf")) ggufs.push_back(in_quotes_if_odd(file));  // other programs keep any name
  return ggufs.empty() ? cat(model.files.size(), " files") : joined(ggufs);
}

void print_table(const std::vector<CachedModel>& models) {
  size_t name = 4, revision = 8;
  for (const CachedModel& model : models) {
    name = std::max(name, in_quotes_if_odd(model.repository).size());
    revision = std::max(revision, revision_text(model).size());
  }
  const auto print = [&](const std::string& first, const std::string& second, const std::string& size,
                         const std::string& files) {
    std::printf("%-*s  %-*s  %8s  %s\n", static_cast<int>(name), first.c_str(), static_cast<int>(revision),
                second.c_str(), size.c_str(), files.c_str());
  };
  print("name", "revision", "size", "files");
  for (const CachedModel& model : models)
    print(in_quotes_if_odd(model.repository), revision_text(model), size_text(model.bytes), files_text(model));
}

void print_models_json(const std::vector<CachedModel>& models) {
  auto all = nlohmann::ordered_json::array();
  for (const CachedModel& model : models)
    all.push_back({{"name", model.repository},
                   {"revisions", model.revisions},
                   {"commit", model.commit},
                   {"bytes", model.bytes},
                   {"path", model.folder.string()},
                   {"files", model.files}});
  std::cout << all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
}

void list_models(bool json) {
  const hub::Settings settings = hub_settings();
  const std::vector<CachedModel> models = hub::cached_models(settings.cache);
  if (json) return print_models_json(models);
  if (models.empty()) {
    std::cerr << "quire: no models in " << settings.cache.string() << "; quire models fetch ORG/NAME fetches one\n";
    return;
  }
  print_table(models);
}

// --- fetching and removing

void fetch_named(const std::string& text) {
  const ModelName name = model_name_from(text);
  FetchDisplay display(say_on_stderr);
  const std::string path = hub::fetch_model(name, hub_settings(), display.events());
  std::cout << path << '\n';
}

// The states that a name without a revision means are all of them.
std::vector<std::string> commits_of(const ModelName& name, const hub::Settings& settings,
                                    const hub::RepositoryCache& cache) {
  if (!name.revision.empty()) {
    const auto commit = cache.commit_of(name.revision);
    return commit ? std::vector{*commit} : std::vector<std::string>{};
  }
  std::vector<std::string> commits;
  for (const CachedModel& model : hub::cached_models(settings.cache))
    if (model.repository == name.repository) commits.push_back(model.commit);
  return commits;
}

bool remove_from(const hub::RepositoryCache& cache, const ModelName& name, const hub::Settings& settings) {
  if (name.revision.empty() && name.file.empty()) {
    const bool was_there = cache.exists();
    cache.remove_all();
    return was_there;
  }
  bool removed = false;
  for (const std::string& commit : commits_of(name, settings, cache)) removed |= cache.remove(commit, name.file);
  return removed;
}

void remove_named(const std::string& text) {
  const ModelName name = model_name_from(text);
  const hub::Settings settings = hub_settings();
  const hub::RepositoryCache cache(settings.cache, name.repository);
  const int64_t before = cache.bytes();
  check(remove_from(cache, name, settings), text, " is not in the cache ", settings.cache.string(),
        "; quire models lists what is");
  std::cout << "removed " << text << ", " << size_text(before - cache.bytes()) << '\n';
}

// --- the command

template <class Body>
void run_models(const char* command, Body&& body) {
  const int code = with_one_line_errors(command, body);
  if (code != 0) throw CLI::RuntimeError(code);
}

void add_each(CLI::App& models, const char* command, const char* line, const char* about,
              void (*run)(const std::string&)) {
  const auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* each = models.add_subcommand(command, about);
  each->add_option("NAME", *names, "ORG/NAME, ORG/NAME@REVISION, ORG/NAME:FILE")->required();
  each->callback([=] {
    run_models(line, [&] {
      for (const std::string& name : *names) run(name);
    });
  });
}

}  // namespace

void add_models(CLI::App& app) {
  CLI::App* models = app.add_subcommand("models", "list the models that were fetched by name; fetch and remove them");
  const auto json = std::make_shared<bool>(false);
  models->add_flag("--json", *json, "print JSON");
  add_each(*models, "fetch", "models fetch", "fetch a model and print its path", fetch_named);
  add_each(*models, "remove", "models remove", "remove a model, one state of it, or one of its files", remove_named);
  models->callback([=] {
    if (models->get_subcommands().empty()) run_models("models", [&] { list_models(*json); });
  });
}

}  // namespace quire
