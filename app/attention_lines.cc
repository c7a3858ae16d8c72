#include "attention_lines.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "tree.h"

namespace quire::bench {
namespace {

constexpr int32_t kNodes = 8, kManyNodes = 64;
constexpr Heads kLatentHeads{.query = 128, .kv = 1, .dim = 576, .value_dim = 512, .latent = true};

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

// (query, key it sees) of one request.
double visible_pairs_of(const AttentionLine& line, double tokens) {
  switch (line.kind) {
    case Kind::decode:
      return tokens;
    case Kind::prefill:
      return line.fresh ? line.fresh * (tokens - line.fresh / 2.0) : tokens * tokens / 2;
    case Kind::verify_tree:
      return line.nodes * tokens + visible_pairs(line.nodes);
  }
  return 0;
}

struct BatchOf {
  int32_t batch, tokens;
};

// On a GPU the instruction set means nothing; plain stands for all.
AttentionLine gpu_line(Kind kind, BatchOf of, int32_t page) {
  return {.kind = kind, .batch = of.batch, .tokens = of.tokens, .page = page, .isa = Isa::plain};
}

void add_gpu_decode_lines(LineGroup& lines) {
  constexpr BatchOf kDecode[] = {{1, 4096},  {1, 65536},  {8, 4096},   {32, 1024},
                                 {32, 4096}, {128, 1024}, {128, 4096}, {16, 32768}};
  for (const BatchOf& of : kDecode)
    for (const int32_t page : {1, 16, 64}) lines.push_back(gpu_line(Kind::decode, of, page));
  for (const int32_t batch : {1, 64, 256}) {
    lines.push_back(gpu_line(Kind::decode, {batch, 512}, 16));
    lines.back().heads = {9, 3, 64};
  }
  lines.push_back(gpu_line(Kind::decode, {32, 1024}, 16));
  lines.back().longest = 65536;
  constexpr BatchOf kNarrow[] = {{32, 4096}, {128, 1024}, {128, 4096}, {16, 32768}};
  for (const BatchOf& of : kNarrow)
    for (const int32_t page : {16, 64}) {
      lines.push_back(gpu_line(Kind::decode, of, page));
      lines.back().type = Dtype::f8e4m3;
    }
  for (const int32_t page : {1, 64}) {
    lines.push_back(gpu_line(Kind::decode, {64, 4096}, page));
    lines.back().heads = kLatentHeads;
  }
  for (const int32_t heads : {16, kLatentHeads.query}) {
    lines.push_back(gpu_line(Kind::decode, {64, 4096}, 64));
    lines.back().heads = kLatentHeads;
    lines.back().heads.query = heads;
    lines.back().type = Dtype::f8e4m3;
  }
}

void add_gpu_verify_lines(LineGroup& lines) {
  for (const int32_t page : {1, 16, 64}) {
    lines.push_back(gpu_line(Kind::verify_tree, {32, 4096}, page));
    lines.back().nodes = kNodes;
  }
  lines.push_back(gpu_line(Kind::verify_tree, {32, 4096}, 16));
  lines.back().nodes = kManyNodes;
  Heads few_latent = kLatentHeads;
  few_latent.query = 16;
  for (const Heads& heads : {Heads{32, 8, 256}, few_latent}) {
    lines.push_back(gpu_line(Kind::verify_tree, {32, 4096}, 64));
    lines.back().nodes = kNodes;
    lines.back().heads = heads;
  }
}

void add_gpu_prefill_lines(LineGroup& lines) {
  constexpr BatchOf kPrefill[] = {{16, 512}, {8, 2048}, {2, 8192}, {1, 16384}};
  for (const BatchOf& of : kPrefill)
    for (const int32_t page : {1, 16, 32, 64, 128}) lines.push_back(gpu_line(Kind::prefill, of, page));
  for (const BatchOf& of : kPrefill)
    for (const int32_t page : {16, 64}) {
      lines.push_back(gpu_line(Kind::prefill, of, page));
      lines.back().type = Dtype::f8e4m3;
    }
  for (const Heads& heads : {Heads{9, 3, 64}, Heads{32, 8, 64}}) {
    lines.push_back(gpu_line(Kind::prefill, {1, 16384}, 16));
    lines.back().heads = heads;
  }
  for (const Heads& heads : {Heads{32, 8, 96}, Heads{32, 8, 192, 128}, Heads{32, 8, 256}}) {
    lines.push_back(gpu_line(Kind::prefill, {2, 8192}, 64));
    lines.back().heads = heads;
  }
  lines.push_back(gpu_line(Kind::prefill, {2, 8192}, 64));
  lines.back().heads = {32, 8, 192, 128};
  lines.back().type = Dtype::f8e4m3;
  for (const int32_t page : {1, 64}) {
    lines.push_back(gpu_line(Kind::prefill, {8, 2048}, page));
    lines.back().heads = kLatentHeads;
  }
}

// A few new tokens after a long prefix.
void add_gpu_extend_lines(LineGroup& lines) {
  for (const int32_t fresh : {16, 64, 256}) {
    lines.push_back(gpu_line(Kind::prefill, {1, 32768}, 16));
    lines.back().fresh = fresh;
  }
  lines.push_back(gpu_line(Kind::prefill, {8, 32768}, 16));
  lines.back().fresh = 16;
  for (const int32_t heads : {16, kLatentHeads.query}) {
    lines.push_back(gpu_line(Kind::prefill, {8, 32768}, 64));
    lines.back().fresh = 16;
    lines.back().heads = kLatentHeads;
    lines.back().heads.query = heads;
  }
}

// Each after the same line without.
void add_gpu_deterministic_lines(LineGroup& lines) {
  LineGroup with;
  for (const AttentionLine& line : lines) {
    with.push_back(line);
    const bool is_wanted = line.page == 16 && !line.heads.latent && line.longest == 0 && line.heads == Heads{} &&
                           (line.kind != Kind::prefill || line.tokens == 2048 || line.fresh == 64);
    if (!is_wanted) continue;
    with.push_back(line);
    with.back().deterministic = true;
  }
  lines = with;
}

}  // namespace

int64_t AttentionLine::rows() const {
  switch (kind) {
    case Kind::decode:
      return batch;
    case Kind::prefill:
      return fresh ? int64_t{batch} * fresh : all_tokens();
    case Kind::verify_tree:
      return int64_t{batch} * nodes;
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
  if (line.longest) text += cat("/longest=", line.longest);
  if (line.fresh) text += cat("/fresh=", line.fresh);
  text += cat("/page=", line.page);
  const Heads& heads = line.heads;
  if (heads != Heads{}) text += cat("/heads=", heads.query, "x", heads.kv, "x", heads.dim);
  if (heads.value_dim != heads.dim) text += cat("v", heads.value_dim);
  if (heads.latent) text += "/latent";
  if (line.type != Dtype::bf16) text += cat("/type=", to_string(line.type));
  if (line.isa != default_isa) text += cat("/isa=", to_string(line.isa));
  if (line.deterministic) text += "/deterministic";
  return text;
}

Work work_of(const AttentionLine& line) {
  const auto rows = static_cast<double>(line.rows());
  const double keys = static_cast<double>(line.all_tokens()) + 1.0 * line.batch * line.nodes;
  double pairs = 0;  // (query, key it sees)
  for (int32_t request = 0; request < line.batch; ++request) pairs += visible_pairs_of(line, line.tokens_of(request));
  const Heads& heads = line.heads;
  const double dims = heads.dim + heads.value_dim;
  const double key_bytes = (heads.latent ? heads.dim : dims) * heads.kv * size_of(line.type);
  const double row_bytes = dims * heads.query * size_of(line.query_type());
  return {.bytes = keys * key_bytes + rows * row_bytes, .flops = 2 * dims * pairs * heads.query};
}

AttentionLine decode_of_same_batch(const AttentionLine& verify) {
  AttentionLine decode = verify;
  decode.kind = Kind::decode;
  decode.nodes = 0;
  return decode;
}

std::string note_of(const Timing& timing, std::span<const Timing> timings) {
  const bool is_tree = timing.line.kind == Kind::verify_tree;
  if (!is_tree && !timing.line.deterministic) return {};
  AttentionLine other = timing.line.deterministic ? timing.line : decode_of_same_batch(timing.line);
  other.deterministic = false;
  const auto found = std::find_if(timings.begin(), timings.end(), [&](const Timing& t) { return t.line == other; });
  if (found == timings.end()) return {};
  char text[48];
  std::snprintf(text, sizeof(text), "%.2f x %s", timing.seconds / found->seconds,
                timing.line.deterministic ? "the default" : "decode of the same batch");
  return text;
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

LineGroup gpu_attention_lines(bool quick) {
  LineGroup lines;
  add_gpu_decode_lines(lines);
  add_gpu_verify_lines(lines);
  add_gpu_prefill_lines(lines);
  add_gpu_extend_lines(lines);
  add_gpu_deterministic_lines(lines);
  if (quick) std::erase_if(lines, [](const AttentionLine& line) { return line.page != 16; });
  return lines;
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
