#include "attention_lines.h"

#include <algorithm>

#include "base/check.h"
#include "tree.h"

namespace quire::bench {
namespace {

constexpr int32_t kNodes = 8;

LineGroup decode_lines(Heads heads, int32_t keys, Isa isa) {
  LineGroup lines;
  for (Dtype type : {Dtype::bf16, Dtype::f16})
    for (int32_t page : {1, 16, 64})
      lines.push_back(
          {.kind = Kind::decode, .batch = 8, .tokens = keys, .page = page, .heads = heads, .type = type, .isa = isa});
  return lines;
}

// Each verification stands beside the decode it is compared with, so that both see the same minute of the machine.
void add_verify_lines(LineGroup& lines, Heads heads, int32_t keys, std::span<const Isa> isas) {
  for (Isa isa : isas) {
    const AttentionLine verify{
        .kind = Kind::verify_tree, .batch = 8, .tokens = keys, .nodes = kNodes, .heads = heads, .isa = isa};
    const AttentionLine decode = decode_of_same_batch(verify);
    auto at = std::find(lines.begin(), lines.end(), decode);
    if (at == lines.end()) at = lines.insert(at, decode);
    lines.insert(at + 1, verify);
  }
}

LineGroup prefill_lines(Heads heads, int32_t tokens, std::span<const Isa> isas, bool quick) {
  const AttentionLine line{.kind = Kind::prefill, .batch = 1, .tokens = tokens, .heads = heads, .isa = isas.back()};
  LineGroup lines;
  for (Isa isa : isas) {
    if (quick && isa == Isa::plain && tokens > 512) continue;  // many seconds a call
    lines.push_back(line);
    lines.back().isa = isa;
  }
  lines.push_back(line);
  lines.back().type = Dtype::f32;
  return lines;
}

}  // namespace

int32_t AttentionLine::rows() const {
  switch (kind) {
    case Kind::decode:
      return batch;
    case Kind::prefill:
      return batch * tokens;
    case Kind::verify_tree:
      return batch * nodes;
  }
  return 0;
}

std::string name(const AttentionLine& line, Isa default_isa) {
  std::string text;
  switch (line.kind) {
    case Kind::decode:
      text = cat("decode/batch=", line.batch, "/keys=", line.tokens);
      break;
    case Kind::prefill:
      text = cat("prefill/tokens=", line.tokens, "/batch=", line.batch);
      break;
    case Kind::verify_tree:
      text = cat("verify_tree/batch=", line.batch, "/nodes=", line.nodes, "/keys=", line.tokens);
      break;
  }
  text += cat("/page=", line.page);
  const Heads& heads = line.heads;
  if (heads != Heads{}) text += cat("/heads=", heads.query, "x", heads.kv, "x", heads.dim);
  if (line.type != Dtype::bf16) text += cat("/type=", to_string(line.type));
  if (line.isa != default_isa) text += cat("/isa=", to_string(line.isa));
  return text;
}

Work work_of(const AttentionLine& line) {
  const double batch = line.batch, tokens = line.tokens;
  const double keys = batch * (tokens + line.nodes);
  double pairs = 0;  // (query, key it sees)
  switch (line.kind) {
    case Kind::decode:
      pairs = batch * tokens;
      break;
    case Kind::prefill:
      pairs = batch * tokens * tokens / 2;
      break;
    case Kind::verify_tree:
      pairs = batch * (line.nodes * tokens + visible_pairs(line.nodes));
      break;
  }
  const Heads& heads = line.heads;
  const double elements = 2 * heads.dim * (keys * heads.kv + static_cast<double>(line.rows()) * heads.query);
  return {.bytes = elements * size_of(line.type), .flops = 4 * pairs * heads.query * heads.dim};
}

AttentionLine decode_of_same_batch(const AttentionLine& verify) {
  AttentionLine decode = verify;
  decode.kind = Kind::decode;
  decode.nodes = 0;
  return decode;
}

std::vector<LineGroup> attention_groups(std::span<const Isa> isas, bool quick) {
  std::vector<Heads> shapes = {Heads{}};
  if (!quick) shapes.push_back({9, 3, 64});
  std::vector<LineGroup> groups;
  for (const Heads& heads : shapes) {
    groups.push_back(decode_lines(heads, 1024, isas.back()));
    LineGroup longer = decode_lines(heads, 4096, isas.back());
    add_verify_lines(longer, heads, 4096, isas);
    groups.push_back(longer);
    groups.push_back({{.kind = Kind::decode, .batch = 1, .tokens = 32768, .heads = heads, .isa = isas.back()}});
    for (int32_t tokens : {512, 2048, 4096}) groups.push_back(prefill_lines(heads, tokens, isas, quick));
  }
  return groups;
}

std::vector<LineGroup> filtered(const std::vector<LineGroup>& groups, const std::string& filter, Isa default_isa) {
  const auto matches = [&](const AttentionLine& line) {
    return name(line, default_isa).find(filter) != std::string::npos;
  };
  std::vector<LineGroup> kept;
  for (const LineGroup& group : groups) {
    LineGroup lines;
    for (const AttentionLine& line : group) {
      const bool needed = std::any_of(group.begin(), group.end(), [&](const AttentionLine& other) {
        return other.kind == Kind::verify_tree && matches(other) && decode_of_same_batch(other) == line;
      });
      if (needed || matches(line)) lines.push_back(line);
    }
    if (!lines.empty()) kept.push_back(lines);
  }
  return kept;
}

}  // namespace quire::bench
