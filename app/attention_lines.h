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
  int32_t dim = 128;
  friend bool operator==(const Heads&, const Heads&) = default;
};

enum class Kind : uint8_t { decode, prefill, verify_tree };

struct AttentionLine {
  Kind kind;
  int32_t batch;
  int32_t tokens;     // decode: keys; prefill: queries and keys; verify_tree: committed keys before the nodes
  int32_t nodes = 0;  // verify_tree only
  int32_t page = 16;
  Heads heads = {};
  Dtype type = Dtype::bf16;
  Isa isa;

  int32_t rows() const;  // queries of the step
  friend bool operator==(const AttentionLine&, const AttentionLine&) = default;
};

// "decode/batch=8/keys=4096/page=16", then the parts away from the default: heads, type, isa.
std::string name(const AttentionLine& line, Isa default_isa);

// Every key and value, query and result once; causal prefill counts half of the square.
Work work_of(const AttentionLine& line);

// The plain decode that a tree verification is held against.
AttentionLine decode_of_same_batch(const AttentionLine& verify);

// Groups of lines that are measured in turns. isas ascend and are not empty; lines that are not about the
// instruction set use the last.
using LineGroup = std::vector<AttentionLine>;
std::vector<LineGroup> attention_groups(std::span<const Isa> isas, bool quick);

// The lines whose names contain the filter, and the decode lines that chosen verifications need; no empty groups.
std::vector<LineGroup> filtered(const std::vector<LineGroup>& groups, const std::string& filter, Isa default_isa);

}  // namespace quire::bench
