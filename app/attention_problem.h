// What the step of a line of `quire bench attention` needs, wherever it runs.
#pragma once
#include <cstdint>

#include "attention_lines.h"
#include "attn/metadata.h"
#include "attn/step.h"
#include "base/buffer.h"

namespace quire::bench {

int32_t tokens_each(const AttentionLine& line);  // of a request: the line's own, and room for the nodes of a tree
attn::Limits limits_of(const AttentionLine& line, int threads);
attn::Mode mode_of(Kind kind);
Buffer random_elements(int64_t count, Dtype type, uint32_t seed, Place place = Place::host);

}  // namespace quire::bench
