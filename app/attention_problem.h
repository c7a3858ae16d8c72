// What the step of a line of `quire bench attention` needs, wherever it runs.
#pragma once
#include <cstdint>

#include "attention_lines.h"
#include "attn/metadata.h"
#include "attn/step.h"
#include "base/buffer.h"
#include "base/tensor.h"

namespace quire::bench {

int32_t room_of(const AttentionLine& line, int32_t request);  // tokens: its own, and the nodes of a tree
attn::Limits limits_of(const AttentionLine& line, Device device, int threads);
attn::Mode mode_of(Kind kind);
int64_t query_elements(const AttentionLine& line);
int64_t result_elements(const AttentionLine& line);
ConstHeadRows query_rows(const AttentionLine& line, const Buffer& queries);
HeadRows result_rows(const AttentionLine& line, const Buffer& results);
Buffer random_elements(int64_t count, Dtype type, uint32_t seed, Place place = Place::host);

}  // namespace quire::bench
