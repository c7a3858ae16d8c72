// `quire inspect model [MODEL] [--json]`: what is in a model's files, for people who wonder whether quire can run them.
//
// MODEL is a GGUF file or a Hugging Face folder. Prints the facts of the architecture, the metadata with long values
// shortened, every tensor, totals for each type of tensor, and who computes the layers' blocks, or why nobody does.
//
// What is wrong with the files leaves the callback as a CheckError, before anything is printed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/in_quotes.h"
#include "commands.h"
#include "model_description.h"
#include "model_path.h"
#include "session.h"

namespace quire {
namespace {

using nlohmann::ordered_json;

struct Total {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;

  void add(const ModelDescription::Tensor& tensor) {
    ++tensors;
    elements += tensor.elements;
    bytes += tensor.bytes;
  }
};

Total total_of(const ModelDescription& model) {
  Total total;
  for (const auto& tensor : model.tensors) total.add(tensor);
  return total;
}

std::map<BlockType, Total> totals_by_type(const ModelDescription& model) {
  std::map<BlockType, Total> totals;
  for (const auto& tensor : model.tensors) totals[tensor.type].add(tensor);
  return totals;
}

// --- JSON

ordered_json to_json(const Total& total) {
  return {{"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
}

ordered_json tensors_json(const ModelDescription& model) {
  ordered_json tensors = ordered_json::array();
  for (const auto& tensor : model.tensors)
    tensors.push_back(
        {{"name", tensor.name}, {"type", to_string(tensor.type)}, {"shape", tensor.dims}, {"bytes", tensor.bytes}});
  return tensors;
}

ordered_json blocks_json(const ModelDescription& model) {
  ordered_json blocks = ordered_json::array();
  for (const auto& [first, last, rows, choice] : model.blocks)
    blocks.push_back({{"first_layer", first}, {"last_layer", last}, {"rows", rows}, {"choice", choice}});
  return blocks;
}

void print_json(const ModelDescription& model) {
  ordered_json all{{"format", model.format},
                   {"files", ordered_json::array()},
                   {"facts", ordered_json::object()},
                   {"metadata", ordered_json::object()},
                   {"tensors", tensors_json(model)},
                   {"types", ordered_json::object()},
                   {"total", to_json(total_of(model))},
                   {"blocks", blocks_json(model)}};
  if (model.blocks.empty()) all["not_run"] = model.not_run;
  for (const auto& file : model.files) all["files"].push_back({{"path", file.path}, {"bytes", file.bytes}});
  for (const auto& fact : model.facts) all["facts"][fact.key] = fact.value;
  for (const auto& entry : model.metadata) all["metadata"][entry.key] = entry.value;
  for (const auto& [type, total] : totals_by_type(model)) all["types"][to_string(type)] = to_json(total);
  // Strings of a file need not be UTF-8; what is not becomes the replacement character.
  std::cout << all.dump(2, ' ', false, ordered_json::error_handler_t::replace) << '\n';
}

// --- a table for people

constexpr size_t kWidestName = 60;

// A name from a file, in quotes only where it could not stand as it is.
std::string bare(std::string_view name) {
  std::string quoted = in_quotes(name);
  return quoted.size() == name.size() + 2 ? std::string(name) : quoted;
}

std::string mebibytes(int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), "%lld bytes (%.1f MiB)", static_cast<long long>(bytes),
                static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string shape_text(const std::vector<int64_t>& dims) {
  if (dims.empty()) return "one number";
  std::string text;
  for (const int64_t dim : dims) text += cat(text.empty() ? "" : " x ", dim);
  return text;
}

// The widest of the names, within limits.
template <class Rows, class NameOf>
int column(const Rows& rows, NameOf name_of) {
  size_t widest = 4;
  for (const auto& row : rows) widest = std::max(widest, std::min(kWidestName, bare(name_of(row)).size()));
  return static_cast<int>(widest);
}

void print_entries(const std::vector<ModelDescription::Entry>& entries) {
  const int width = column(entries, [](const auto& entry) { return entry.key; });
  for (const auto& entry : entries) std::printf("  %-*s  %s\n", width, bare(entry.key).c_str(), entry.shown.c_str());
}

void print_files(const ModelDescription& model) {
  std::printf("%s, %lld parameters\n", model.format.c_str(), static_cast<long long>(total_of(model).elements));
  for (const auto& file : model.files) std::printf("  %s  %s\n", file.path.c_str(), mebibytes(file.bytes).c_str());
}

void print_tensors(const ModelDescription& model) {
  std::printf("\ntensors, %zu: name, type, shape with the contiguous dimension last, bytes\n", model.tensors.size());
  const int width = column(model.tensors, [](const auto& tensor) { return tensor.name; });
  for (const auto& tensor : model.tensors)
    std::printf("  %-*s  %-4s  %20s  %12lld\n", width, bare(tensor.name).c_str(), to_string(tensor.type),
                shape_text(tensor.dims).c_str(), static_cast<long long>(tensor.bytes));
}

void print_total(const char* name, const Total& total) {
  const double bits =
      total.elements > 0 ? 8.0 * static_cast<double>(total.bytes) / static_cast<double>(total.elements) : 0;
  std::printf("  %-5s  %8lld  %14lld  %14lld  %16.2f\n", name, static_cast<long long>(total.tensors),
              static_cast<long long>(total.elements), static_cast<long long>(total.bytes), bits);
}

void print_totals(const ModelDescription& model) {
  std::printf("\n  %-5s  %8s  %14s  %14s  %16s\n", "type", "tensors", "elements", "bytes", "bits per element");
  for (const auto& [type, total] : totals_by_type(model)) print_total(to_string(type), total);
  print_total("all", total_of(model));
}

void print_blocks(const ModelDescription& model) {
  if (model.blocks.empty()) return void(std::printf("\nquire does not run it: %s\n", model.not_run.c_str()));
  std::printf("\nblocks on the CPU: layers, rows, who computes each\n");
  for (const auto& [first, last, rows, choice] : model.blocks)
    std::printf("  %9s  %4lld  %s\n", cat(first, "-", last).c_str(), static_cast<long long>(rows), choice.c_str());
}

void inspect_model(const std::string& path, bool as_json) {
  check_model(path);
  const ModelDescription model = describe_model(path);
  if (as_json) return print_json(model);
  print_files(model);
  std::printf("\narchitecture\n");
  print_entries(model.facts);
  std::printf("\nmetadata, %zu keys\n", model.metadata.size());
  print_entries(model.metadata);
  print_tensors(model);
  print_totals(model);
  print_blocks(model);
}

}  // namespace

void add_inspect_model(CLI::App& inspect) {
  struct Options {
    std::string path;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* model = inspect.add_subcommand("model", "what is in a model's files");
  add_model_argument(*model, options->path);
  model->add_flag("--json", options->json, "print JSON");
  model->callback([options] { inspect_model(model_path(options->path), options->json); });
}

}  // namespace quire
