// The lines of `quire bench attention`: which problems, under which names, and how much work each is.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/types.h"
#include "machine_limits.h"

namespace quire::bench {

struct Heads {
  int32_t query = 32;
  int32_t kv = 8;
  int32_t dim = 128;        // of queries and keys
  int32_t value_dim = dim;  // of values and results
  bool latent = false;      // MLA: a value is the front of its key
  friend bool operator==(const Heads&, const Heads&) = default;
};

enum class Kind : uint8_t { decode, prefill, verify_tree };

struct AttentionLine {
  Kind kind;
  int32_t batch;
  int32_t tokens;       // decode: keys; prefill: queries and keys; verify_tree: committed keys before the nodes
  int32_t longest = 0;  // tokens of the first request, where it is longer than the others; 0: all are alike
  int32_t fresh = 0;    // prefill only: queries of each request, the last of its tokens; 0: all of them
  int32_t nodes = 0;    // verify_tree only
  int32_t page = 16;
  Heads heads = {};
  Dtype type = Dtype::bf16;    // of keys and values
  bool deterministic = false;  // GPU only
  Isa isa;

  int32_t fresh_of(int32_t request) const { return fresh ? fresh : tokens_of(request); }
  int32_t tokens_of(int32_t request) const { return request == 0 ? most_tokens() : tokens; }
  int32_t most_tokens() const { return longest ? longest : tokens; }
  int64_t all_tokens() const { return most_tokens() + int64_t{batch - 1} * tokens; }
  int64_t rows() const;                                                            // queries of the step
  Dtype query_type() const { return type == Dtype::f8e4m3 ? Dtype::bf16 : type; }  // and of results
  friend bool operator==(const AttentionLine&, const AttentionLine&) = default;
};

// "decode/batch=8/keys=4096/page=16", then the parts away from the default: heads, type, isa. Heads are
// "32x8x128", query heads x kv heads x dim, "32x8x192v128" where values have another dim.
std::string name(const AttentionLine& line, Isa default_isa);

// Every key and value (once for both where they are one), query and result once; causal prefill counts half of the
// square.
Work work_of(const AttentionLine& line);

// The plain decode that a tree verification is held against.
AttentionLine decode_of_same_batch(const AttentionLine& verify);

struct Timing {
  AttentionLine line;
  double seconds;
};
// What is worth saying of a line: a verification beside its decode, where both were timed; else nothing.
std::string note_of(const Timing& timing, std::span<const Timing> timings);

// Groups of lines that are measured in turns. isas ascend and are not empty; lines that are not about the
// instruction set use the last.
using LineGroup = std::vector<AttentionLine>;
std::vector<LineGroup> attention_groups(std::span<const Isa> isas, bool quick);

// The lines of a GPU, measured one after the other.
LineGroup gpu_attention_lines(bool quick);

// The lines whose names contain the filter, and the decode lines that chosen verifications need; no empty groups.
std::vector<LineGroup> filtered(const std::vector<LineGroup>& groups, const std::string& filter, Isa default_isa);

}  // namespace quire::bench
