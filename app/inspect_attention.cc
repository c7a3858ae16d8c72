// `quire inspect attention`: which kernel takes a problem on a GPU, how it is launched, and why. The problem is laid
// out as a call without memory behind it: the choice looks at no element, and no GPU need be there.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "attn/attention.h"
#include "attn/gpu_choice.h"
#include "base/check.h"
#include "commands.h"
#include "one_line_errors.h"

namespace quire {
namespace {

using attn::Mode;

struct AttentionProblem {
  Mode mode = Mode::decode;
  int32_t batch = 1, queries = 1, context = 4096, page_size = 16;
  int32_t heads = 32, kv_heads = 8, key_dim = 128, value_dim = 0;
  Dtype type = Dtype::bf16, kv_type = Dtype::bf16;
  bool is_latent = false, is_deterministic = false;
  attn::GpuDevice device{.capability = 90, .processors = 132, .shared_bytes = 232448, .reserved_shared = 1024};

  int32_t values() const { return value_dim > 0 ? value_dim : is_latent && key_dim > 64 ? key_dim - 64 : key_dim; }
  bool is_verify() const { return mode == Mode::verify || mode == Mode::verify_tree; }
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

attn::Limits limits_of(const AttentionProblem& problem) {
  return {.batch = problem.batch,
          .context = problem.context,
          .page_size = PageSize(problem.page_size),
          .draft_tokens = problem.is_verify() ? problem.queries : 0,
          .heads = problem.heads,
          .kv_heads = problem.kv_heads,
          .key_dim = problem.key_dim,
          .value_dim = problem.values(),
          .device = Device::cuda};
}

// Addresses that nobody follows, at multiples of 4096.
std::byte* nowhere(int32_t number) { return reinterpret_cast<std::byte*>(uintptr_t{4096} * (number + 1)); }

attn::GpuChoice choice_for(const AttentionProblem& problem) {
  check(problem.heads % problem.kv_heads == 0, problem.heads, " heads are no multiple of ", problem.kv_heads,
        " kv heads");
  const attn::MetadataArena arena(limits_of(problem));
  const int64_t rows = int64_t{problem.batch} * (problem.mode == Mode::decode ? 1 : problem.queries);
  const attn::StepShape shape{.mode = problem.mode,
                              .captured = problem.batch,
                              .query_rows = static_cast<int32_t>(rows),
                              .table = {.pages = reinterpret_cast<const PageId*>(nowhere(0)),
                                        .stride = arena.limits().text_pages(),
                                        .rows = problem.batch + 1,
                                        .width = arena.limits().text_pages(),
                                        .page_size = arena.limits().page_size,
                                        .pool_pages = 1}};
  const int32_t values = problem.values(), heads = problem.heads;
  return choose_gpu({.keys = key_view(arena, shape, attn::LayerKind::full),
                     .arena = &arena,
                     .kv = {.keys = nowhere(1),
                            .values = nowhere(problem.is_latent ? 1 : 2),
                            .type = problem.kv_type,
                            .kv_heads = problem.kv_heads,
                            .key_dim = problem.key_dim,
                            .value_dim = values,
                            .key_stride = int64_t{problem.kv_heads} * problem.key_dim,
                            .value_stride = int64_t{problem.kv_heads} * (problem.is_latent ? problem.key_dim : values),
                            .key_scale = 1,
                            .value_scale = 1,
                            .slots = 1},
                     .q = {nowhere(3), problem.type, rows, heads, problem.key_dim, int64_t{heads} * problem.key_dim},
                     .out = {nowhere(4), problem.type, rows, heads, values, int64_t{heads} * values},
                     .scale = 1 / std::sqrt(static_cast<float>(problem.key_dim)),
                     .deterministic = problem.is_deterministic},
                    problem.device);
}

void print(const AttentionProblem& problem) {
  const attn::GpuChoice choice = choice_for(problem);
  const attn::Problem shape{.query_type = problem.type,
                            .kv_type = problem.kv_type,
                            .heads = problem.heads,
                            .kv_heads = problem.kv_heads,
                            .key_dim = problem.key_dim,
                            .value_dim = problem.values()};
  std::cout << "problem  " << to_string(problem.mode) << " of " << problem.batch << " sequences";
  if (problem.mode != Mode::decode) std::cout << " with " << problem.queries << " queries each";
  std::cout << ", up to " << problem.context << " keys in pages of " << problem.page_size << ": " << to_string(shape)
            << (problem.is_latent ? ", latent" : "") << (problem.is_deterministic ? ", deterministic" : "") << '\n'
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
  number("--batch", problem->batch, "sequences");
  number("--queries", problem->queries, "of each sequence, but in decode");
  number("-c,--context-length", problem->context, "most keys of a sequence");
  number("--page-size", problem->page_size, "tokens in a page");
  number("--heads", problem->heads, "query heads");
  number("--kv-heads", problem->kv_heads, "kv heads");
  number("--key-dim", problem->key_dim, "elements of a key");
  app->add_option("--value-dim", problem->value_dim, "elements of a value; as many as a key's if not given")
      ->check(CLI::Range(1, 1 << 24));
  word("--dtype", words->type, {"f32", "bf16", "f16"}, "of queries");
  word("--kv-cache-dtype", words->kv_type, names_of(kProblemTypes), "of keys and values");
  app->add_flag("--latent", problem->is_latent, "a value is its key's front (MLA)");
  app->add_flag("--deterministic", problem->is_deterministic, "the one reduction");
  number("--capability", problem->device.capability, "of the GPU: 90 for 9.0");
  number("--processors", problem->device.processors, "of the GPU");
  number("--shared-bytes", problem->device.shared_bytes, "shared memory that a block may have");
  app->callback([problem, words] {
    problem->mode = named(kProblemModes, words->mode);
    problem->type = named(kProblemTypes, words->type);
    problem->kv_type = named(kProblemTypes, words->kv_type);
    const int code = with_one_line_errors("inspect attention", [&] { print(*problem); });
    if (code != 0) throw CLI::RuntimeError(code);
  });
}

}  // namespace quire
