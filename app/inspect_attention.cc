// `quire inspect attention`: which kernel takes a problem on a GPU, how it is launched, and why. No GPU need be there.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "attn/gpu_choice.h"
#include "base/check.h"
#include "commands.h"
#include "one_line_errors.h"

namespace quire {
namespace {

using attn::Mode;

struct AttentionProblem {
  attn::GpuProblem call{.shapes = {.query_type = Dtype::bf16,
                                   .kv_type = Dtype::bf16,
                                   .heads = 32,
                                   .kv_heads = 8,
                                   .key_dim = 128,
                                   .value_dim = 0}};
  attn::GpuDevice device{.capability = 90, .processors = 132, .shared_bytes = 232448, .reserved_shared = 1024};
};

constexpr Mode kProblemModes[] = {Mode::decode, Mode::extend, Mode::verify, Mode::verify_tree};
constexpr Dtype kProblemTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3};
struct ProblemWords {
  std::string mode = "decode", type = "bf16", kv_type = "bf16";
};

template <class T, size_t kCount>
std::vector<std::string> names_of(const T (&values)[kCount]) {
  std::vector<std::string> names;
  for (const T value : values) names.emplace_back(to_string(value));
  return names;
}
template <class T, size_t kCount>
T named(const T (&values)[kCount], const std::string& name) {
  for (const T value : values)
    if (to_string(value) == name) return value;
  throw CheckError(cat("no such word: ", name));
}

void print(AttentionProblem problem) {
  attn::GpuProblem& call = problem.call;
  attn::Problem& shapes = call.shapes;
  check(shapes.heads % shapes.kv_heads == 0, shapes.heads, " heads are no multiple of ", shapes.kv_heads, " kv heads");
  if (shapes.value_dim == 0)
    shapes.value_dim = call.is_latent && shapes.key_dim > 64 ? shapes.key_dim - 64 : shapes.key_dim;
  const attn::GpuChoice choice = choose_gpu(call, problem.device);
  std::cout << "problem  " << to_string(call.mode) << " of " << call.batch << " sequences";
  if (call.mode != Mode::decode) std::cout << " with " << call.queries << " queries each";
  std::cout << ", up to " << call.context << " keys in pages of " << call.page_size << ": " << to_string(shapes)
            << (call.is_latent ? ", latent" : "") << (call.is_deterministic ? ", deterministic" : "") << '\n'
            << "device   " << to_string(problem.device) << '\n'
            << "kernel   " << to_string(choice) << '\n'
            << "because  " << choice.why << '\n';
}

}  // namespace

void add_inspect_attention(CLI::App& inspect) {
  const auto problem = std::make_shared<AttentionProblem>();
  CLI::App* app = inspect.add_subcommand("attention", "which kernel of a GPU takes a problem, and why");
  const auto number = [&](const char* name, int32_t& value, const char* help) {
    app->add_option(name, value, help)->check(CLI::Range(1, 1 << 24))->capture_default_str();
  };
  const auto word = [&](const char* name, std::string& value, const std::vector<std::string>& words, const char* help) {
    app->add_option(name, value, help)->check(CLI::IsMember(words))->capture_default_str();
  };
  const auto words = std::make_shared<ProblemWords>();
  word("--mode", words->mode, names_of(kProblemModes), "of the step");
  number("--batch", problem->call.batch, "sequences");
  number("--queries", problem->call.queries, "of each sequence, but in decode");
  number("-c,--context-length", problem->call.context, "most keys of a sequence");
  number("--page-size", problem->call.page_size, "tokens in a page");
  number("--heads", problem->call.shapes.heads, "query heads");
  number("--kv-heads", problem->call.shapes.kv_heads, "kv heads");
  number("--key-dim", problem->call.shapes.key_dim, "elements of a key");
  app->add_option("--value-dim", problem->call.shapes.value_dim, "elements of a value; as many as a key's if not given")
      ->check(CLI::Range(1, 1 << 24));
  word("--dtype", words->type, {"f32", "bf16", "f16"}, "of queries");
  word("--kv-cache-dtype", words->kv_type, names_of(kProblemTypes), "of keys and values");
  app->add_flag("--latent", problem->call.is_latent, "a value is its key's front (MLA)");
  app->add_flag("--deterministic", problem->call.is_deterministic, "the one reduction");
  number("--capability", problem->device.capability, "of the GPU: 90 for 9.0");
  number("--processors", problem->device.processors, "of the GPU");
  number("--shared-bytes", problem->device.shared_bytes, "shared memory that a block may have");
  app->callback([problem, words] {
    problem->call.mode = named(kProblemModes, words->mode);
    problem->call.shapes.query_type = named(kProblemTypes, words->type);
    problem->call.shapes.kv_type = named(kProblemTypes, words->kv_type);
    const int code = with_one_line_errors("inspect attention", [&] { print(*problem); });
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace quire
