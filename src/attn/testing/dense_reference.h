// What attention must give, from first principles: every logical token has its own key, value and query, a mode says
// which tokens a query sees, and the sum is taken over plain arrays in double. It knows no page, slot or metadata, so
// it can judge all code that does.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "attn/step.h"
#include "base/types.h"

namespace quire::attn::testing {

// A token as the model sees it. Two steps that name the same token mean the same key, value and query.
struct Token {
  int32_t request;
  int32_t position;
  int32_t variant;  // 0: on the request's main line; above: on another branch of a tree; kEncoder: an encoder key

  static constexpr int32_t kEncoder = -1;
};

// One request's share of a step.
struct Sequence {
  int32_t request;
  int32_t length;      // s, as the mode means it
  int32_t extend = 0;  // extend, draft_extend: how many of its tokens are queries
  // verify_tree: [nd] the parent of each node; the root, node 0, has -1, and parents come before their children.
  std::vector<int32_t> parents = {};
  // draft_tree: [steps before draft_step][topk] the branch that branch c of the next step continues; empty: itself.
  std::vector<std::vector<int32_t>> draft_parents = {};
  int32_t encoder = 0;  // encoder keys
};

struct Step {
  Mode mode = Mode::decode;
  LayerKind kind = LayerKind::full;
  Form form = Form::in_place;
  std::vector<Sequence> sequences = {};
  int32_t captured = 0;       // sequences the step is padded to; 0: none more than given
  int32_t sequence_rows = 0;  // extend, draft_extend: the shape's bound; 0: none
  int32_t draft_step = 0;     // i
  int32_t window = -1;
  float softcap = 0;
  bool sinks = false;
};

// The sizes that give a step its meaning; the rest of a world does not matter here.
struct Sizes {
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t key_dim = 64;
  int32_t value_dim = 64;
  bool latent = false;  // values are the front of keys
  Dtype query_type = Dtype::f32;
  Dtype kv_type = Dtype::f32;
  float key_scale = 1;  // fp8: stored = true / scale
  float value_scale = 1;
  float score_scale = 1;  // beside the usual one
  int32_t topk = 1;
  int32_t draft_tokens = 0;
  int32_t chunk = 0;
  uint64_t seed = 1;

  float scale() const;  // of the scores
};

int32_t captured_of(const Step& step);
// Query rows of a sequence, and of the whole step padded to its captured size.
int32_t query_rows(const Step& step, const Sequence& sequence, const Sizes& sizes);
int32_t query_rows(const Step& step, const Sizes& sizes);
// Main-line tokens whose keys the step needs stored.
int32_t main_tokens(const Step& step, const Sequence& sequence, const Sizes& sizes);
// A tree's node as a token: the first child of a main-line node continues the main line.
Token node_token(const Sequence& sequence, int32_t node);
Token query_token(const Step& step, const Sequence& sequence, int32_t row);

// The numbers of tokens, made from the seed alone and already rounded to the types they are stored in.
class TokenValues {
 public:
  explicit TokenValues(const Sizes& sizes) : sizes_(sizes) {}

  struct Row {
    std::vector<float> keys;    // [kv heads, key dim] as stored: the true value is this times the scale
    std::vector<float> values;  // [kv heads, value dim]
  };
  // From now on the first `tokens` tokens of request `child`, and its encoder keys, are those of `parent`.
  void share_prefix(int32_t parent, int32_t child, int32_t tokens);

  const Row& row(Token token);
  std::vector<float> query(Token token) const;  // [heads, key dim]
  std::vector<float> sinks() const;             // [heads]

 private:
  struct Prefix {
    int32_t parent;
    int32_t tokens;
  };
  Token original(Token token) const;  // the same token in the request that had it first

  Sizes sizes_;
  std::unordered_map<uint64_t, Row> rows_;
  std::unordered_map<int32_t, Prefix> prefixes_;  // by child
};

struct Attention {
  std::vector<float> out;  // [rows, heads, value dim]
  std::vector<float> lse;  // [heads, rows]
};
Attention dense_attention(const Step& step, const Sizes& sizes, TokenValues& tokens);

}  // namespace quire::attn::testing
