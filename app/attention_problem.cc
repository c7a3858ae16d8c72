#include "attention_problem.h"

#include <algorithm>
#include <random>

#include "base/check.h"

namespace quire::bench {

int32_t room_of(const AttentionLine& line, int32_t request) {
  constexpr int32_t kSpareTokens = 16;
  return line.tokens_of(request) + std::max(kSpareTokens, line.nodes);
}

attn::Limits limits_of(const AttentionLine& line, Device device, int threads) {
  return {.batch = line.batch,
          .context = line.most_tokens(),
          .page_size = PageSize(line.page),
          .draft_tokens = line.nodes,
          .heads = line.heads.query,
          .kv_heads = line.heads.kv,
          .key_dim = line.heads.dim,
          .value_dim = line.heads.value_dim,
          .threads = threads,
          .device = device};
}

attn::Mode mode_of(Kind kind) {
  switch (kind) {
    case Kind::decode:
      return attn::Mode::decode;
    case Kind::prefill:
      return attn::Mode::extend;
    case Kind::verify_tree:
      return attn::Mode::verify_tree;
  }
  throw CheckError("a kind of line without a mode");
}

int64_t query_elements(const AttentionLine& line) { return line.rows() * line.heads.query * line.heads.dim; }
int64_t result_elements(const AttentionLine& line) { return line.rows() * line.heads.query * line.heads.value_dim; }

ConstHeadRows query_rows(const AttentionLine& line, const Buffer& queries) {
  const int32_t heads = line.heads.query, dim = line.heads.dim;
  return {queries.data(), line.query_type(), line.rows(), heads, dim, int64_t{heads} * dim};
}

HeadRows result_rows(const AttentionLine& line, const Buffer& results) {
  const int32_t heads = line.heads.query, dim = line.heads.value_dim;
  return {results.data(), line.query_type(), line.rows(), heads, dim, int64_t{heads} * dim};
}

Buffer random_elements(int64_t count, Dtype type, uint32_t seed, Place place) {
  Buffer elements(static_cast<size_t>(count * size_of(type)), place);
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < count; ++i) store_element(type, elements.data(), i, uniform(random));
  return elements;
}

}  // namespace quire::bench
