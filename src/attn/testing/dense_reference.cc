#include "attn/testing/dense_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire::attn::testing {
namespace {

// Numbers from a counter: any of them can be made without the ones before it.
uint64_t scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t key_of(Token token) {
  return (static_cast<uint64_t>(token.request) << 44) ^ (static_cast<uint64_t>(token.position) << 16) ^
         static_cast<uint16_t>(token.variant);
}

float rounded(float x, Dtype type) {
  float storage;
  store_element(type, &storage, 0, x);
  return load_element(type, &storage, 0);
}

enum class Stream : uint64_t { keys, values, queries, sinks };

// Uniform with variance 1. Every eighth token is three times as loud, so that the largest score moves along a row.
std::vector<float> draw(uint64_t seed, Stream stream, uint64_t key, int64_t count, Dtype type, float scale = 1) {
  const uint64_t base = scramble(scramble(seed ^ (static_cast<uint64_t>(stream) << 60)) ^ key);
  const float loudness = base % 8 == 0 ? 3.0f : 1.0f;
  std::vector<float> numbers(count);
  for (int64_t i = 0; i < count; ++i) {
    const float uniform = static_cast<float>(scramble(base + i) >> 40) * 0x1p-23f - 1;
    numbers[i] = rounded(loudness * 1.7320508f * uniform / scale, type);
  }
  return numbers;
}

std::vector<float> front_of(const std::vector<float>& keys, int32_t count) {
  return {keys.begin(), keys.begin() + count};
}

bool is_main_node(const std::vector<int32_t>& parents, int32_t node) {
  for (; node > 0; node = parents[node]) {
    const auto first_child = std::find(parents.begin(), parents.end(), parents[node]);
    if (first_child != parents.begin() + node) return false;
  }
  return true;
}

int32_t depth_of(const std::vector<int32_t>& parents, int32_t node) {
  int32_t depth = 0;
  for (; parents[node] >= 0; node = parents[node]) ++depth;
  return depth;
}

// The position of a sequence's query row: the number of tokens before it on its own path.
int32_t position_of(const Step& step, const Sequence& sequence, int32_t row) {
  switch (step.mode) {
    case Mode::decode:
      return sequence.length - 1;
    case Mode::extend:
    case Mode::draft_extend:
      return sequence.length - sequence.extend + row;
    case Mode::draft:
    case Mode::draft_tree:
      return sequence.length + step.draft_step;
    case Mode::verify:
      return sequence.length + row;
    case Mode::verify_tree:
      return sequence.length + depth_of(sequence.parents, row);
  }
  return -1;
}

std::vector<Token> draft_path(const Step& step, const Sequence& sequence, int32_t branch) {
  std::vector<Token> path;
  for (int32_t t = step.draft_step; t >= 0; --t) {
    path.push_back({sequence.request, sequence.length + t, branch});
    if (t > 0 && !sequence.draft_parents.empty()) branch = sequence.draft_parents[t - 1][branch];
  }
  return path;
}

std::vector<Token> node_path(const Sequence& sequence, int32_t node) {
  std::vector<Token> path;
  for (; node >= 0; node = sequence.parents[node]) path.push_back(node_token(sequence, node));
  return path;
}

// The tokens after the committed ones that lead to the query, itself included, in order.
std::vector<Token> branch_of(const Step& step, const Sequence& sequence, int32_t row) {
  std::vector<Token> path;
  if (step.mode == Mode::draft_tree) path = draft_path(step, sequence, row);
  if (step.mode == Mode::verify_tree) path = node_path(sequence, row);
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<Token> encoder_keys(const Sequence& sequence) {
  std::vector<Token> keys;
  for (int32_t j = 0; j < sequence.encoder; ++j) keys.push_back({sequence.request, j, Token::kEncoder});
  return keys;
}

std::vector<Token> path_to(const Step& step, const Sequence& sequence, int32_t row) {
  const std::vector<Token> branch = branch_of(step, sequence, row);
  const int32_t position = position_of(step, sequence, row);
  const int32_t main_end = branch.empty() ? position + 1 : sequence.length;
  std::vector<Token> path;
  for (int32_t j = 0; j < main_end; ++j) path.push_back({sequence.request, j, 0});
  path.insert(path.end(), branch.begin(), branch.end());
  return path;
}

std::vector<Token> visible_keys(const Step& step, const Sequence& sequence, int32_t row, const Sizes& sizes) {
  if (step.kind == LayerKind::encoder) return encoder_keys(sequence);
  std::vector<Token> path = path_to(step, sequence, row);
  const auto end = static_cast<int32_t>(path.size());
  int32_t first = 0;
  if (step.window >= 0) first = std::max(first, end - 1 - step.window);
  if (step.kind == LayerKind::local) first = std::max(first, (end - 1) / sizes.chunk * sizes.chunk);
  path.erase(path.begin(), path.begin() + std::min(first, end));
  return path;
}

double score(const float* query, const float* key, const Step& step, const Sizes& sizes) {
  double dot = 0;
  for (int32_t d = 0; d < sizes.key_dim; ++d) dot += double{query[d]} * key[d];
  const double x = dot * sizes.scale() * sizes.key_scale;
  return step.softcap > 0 ? step.softcap * std::tanh(x / step.softcap) : x;
}

struct Target {
  float* out;  // [value dim]
  float* lse;
};

void attend_head(const Step& step, const Sizes& sizes, const float* query, int32_t head, double sink,
                 const std::vector<const TokenValues::Row*>& keys, Target target) {
  const int32_t kv_head = head / (sizes.heads / sizes.kv_heads);
  std::vector<double> scores;
  for (const TokenValues::Row* key : keys)
    scores.push_back(score(query + head * sizes.key_dim, key->keys.data() + kv_head * sizes.key_dim, step, sizes));
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  std::vector<double> out(sizes.value_dim);
  for (size_t j = 0; j < keys.size(); ++j) {
    const double weight = std::exp(scores[j] - top);
    const float* value = keys[j]->values.data() + kv_head * sizes.value_dim;
    sum += weight;
    for (int32_t d = 0; d < sizes.value_dim; ++d) out[d] += weight * value[d];
  }
  const double denominator = sum + std::exp(sink - top);
  for (int32_t d = 0; d < sizes.value_dim; ++d)
    target.out[d] = static_cast<float>(out[d] * sizes.value_scale / denominator);
  *target.lse = static_cast<float>(top + std::log(sum));
}

}  // namespace

float Sizes::scale() const { return score_scale / std::sqrt(static_cast<float>(key_dim)); }

int32_t captured_of(const Step& step) { return std::max(step.captured, static_cast<int32_t>(step.sequences.size())); }

int32_t query_rows(const Step& step, const Sequence& sequence, const Sizes& sizes) {
  switch (step.mode) {
    case Mode::decode:
    case Mode::draft:
      return 1;
    case Mode::extend:
    case Mode::draft_extend:
      return sequence.extend;
    case Mode::draft_tree:
      return sizes.topk;
    case Mode::verify:
    case Mode::verify_tree:
      return sizes.draft_tokens;
  }
  return 0;
}

int32_t query_rows(const Step& step, const Sizes& sizes) {
  const Sequence padding{.request = -1, .length = 1, .extend = 1};
  int32_t rows = 0;
  for (const Sequence& sequence : step.sequences) rows += query_rows(step, sequence, sizes);
  const int32_t padded = captured_of(step) - static_cast<int32_t>(step.sequences.size());
  return rows + padded * query_rows(step, padding, sizes);
}

int32_t main_tokens(const Step& step, const Sequence& sequence, const Sizes& sizes) {
  switch (step.mode) {
    case Mode::draft:
      return sequence.length + step.draft_step + 1;
    case Mode::verify:
      return sequence.length + sizes.draft_tokens;
    default:
      return sequence.length;
  }
}

Token node_token(const Sequence& sequence, int32_t node) {
  return {sequence.request, sequence.length + depth_of(sequence.parents, node),
          is_main_node(sequence.parents, node) ? 0 : node + 1};
}

Token query_token(const Step& step, const Sequence& sequence, int32_t row) {
  const std::vector<Token> branch = branch_of(step, sequence, row);
  return branch.empty() ? Token{sequence.request, position_of(step, sequence, row), 0} : branch.back();
}

void TokenValues::share_prefix(int32_t parent, int32_t child, int32_t tokens) { prefixes_[child] = {parent, tokens}; }

Token TokenValues::original(Token token) const {
  for (auto found = prefixes_.find(token.request); found != prefixes_.end(); found = prefixes_.find(token.request)) {
    const bool is_in_prefix = token.variant == 0 && token.position < found->second.tokens;
    if (!is_in_prefix && token.variant != Token::kEncoder) break;
    token.request = found->second.parent;
  }
  return token;
}

const TokenValues::Row& TokenValues::row(Token token) {
  token = original(token);
  Row& row = rows_[key_of(token)];
  if (!row.keys.empty()) return row;
  row.keys = draw(sizes_.seed, Stream::keys, key_of(token), int64_t{sizes_.kv_heads} * sizes_.key_dim, sizes_.kv_type,
                  sizes_.key_scale);
  row.values = sizes_.latent ? front_of(row.keys, sizes_.value_dim)
                             : draw(sizes_.seed, Stream::values, key_of(token),
                                    int64_t{sizes_.kv_heads} * sizes_.value_dim, sizes_.kv_type, sizes_.value_scale);
  return row;
}

std::vector<float> TokenValues::query(Token token) const {
  token = original(token);
  return draw(sizes_.seed, Stream::queries, key_of(token), int64_t{sizes_.heads} * sizes_.key_dim, sizes_.query_type);
}

std::vector<float> TokenValues::sinks() const { return draw(sizes_.seed, Stream::sinks, 0, sizes_.heads, Dtype::f32); }

Attention dense_attention(const Step& step, const Sizes& sizes, TokenValues& tokens) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int32_t rows = query_rows(step, sizes);
  Attention result{.out = std::vector<float>(int64_t{rows} * sizes.heads * sizes.value_dim),
                   .lse = std::vector<float>(int64_t{rows} * sizes.heads, -kInfinity)};
  const std::vector<float> sinks = step.sinks ? tokens.sinks() : std::vector<float>(sizes.heads, -kInfinity);
  int64_t at = 0;
  for (const Sequence& sequence : step.sequences)
    for (int32_t row = 0; row < query_rows(step, sequence, sizes); ++row, ++at) {
      std::vector<const TokenValues::Row*> keys;
      for (const Token token : visible_keys(step, sequence, row, sizes)) keys.push_back(&tokens.row(token));
      if (keys.empty()) continue;
      const std::vector<float> query = tokens.query(query_token(step, sequence, row));
      for (int32_t head = 0; head < sizes.heads; ++head)
        attend_head(
            step, sizes, query.data(), head, sinks[head], keys,
            {.out = &result.out[(at * sizes.heads + head) * sizes.value_dim], .lse = &result.lse[head * rows + at]});
    }
  return result;
}

}  // namespace quire::attn::testing
