// A constraint on the output: its kind, whether it is loose, its source, and some tokens drawn along its masks.
#include <string>
#include <vector>

#include "fuzz.h"
#include "grammar/compiler.h"

using namespace quire;

namespace {

constexpr int kVocabulary = 262, kEndId = 256;

grammar::Tokens tokens() {
  grammar::Tokens tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.pieces.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* piece : {"", "\":", "ab", "12", "\xE6\x97", ""}) tokens.pieces.push_back(piece);
  tokens.end_ids = {kEndId};
  return tokens;
}

const grammar::Compiler& compiler() {
  static const grammar::Compiler compiler(
      tokens(), {.source_bytes = 2048, .depth = 12, .time = std::chrono::milliseconds(500), .cache_bytes = 1 << 20});
  return compiler;
}

bool allows(const uint32_t* mask, int id) { return !mask || (mask[id / 32] >> (id % 32) & 1); }

// The allowed token that the seed points at.
int draw(const uint32_t* mask, uint32_t seed) {
  std::vector<int> allowed;
  for (int id = 0; id < kVocabulary; ++id) {
    if (allows(mask, id)) allowed.push_back(id);
  }
  fuzz::promise(!allowed.empty(), "at least one token is allowed");
  return allowed[seed % allowed.size()];
}

void walk(engine::TokenMask& mask, uint32_t seed) {
  for (int i = 0; i < 24; ++i) {
    seed = seed * 1664525 + 1013904223;
    const int token = draw(mask.next(), seed >> 8);
    mask.accept(token);
    if (token == kEndId) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const grammar::Source source{static_cast<grammar::Kind>(data[0] % 4), std::string(fuzz::text_of(data + 1, size - 1)),
                               (data[0] & 0x40) != 0};
  fuzz::attempt([&] {
    const auto compiled = compiler().compile(source);
    walk(*compiler().mask(compiled), static_cast<uint32_t>(size) * 2654435761U + data[size - 1]);
  });
  return 0;
}
