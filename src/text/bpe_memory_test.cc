// What a long piece takes while it is encoded.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/testing/peak_memory.h"
#include "text/bpe.h"
#include "text/merges.h"

namespace quire::text {
namespace {

Vocabulary of_doubled_letters() {
  Vocabulary vocabulary;
  for (const char* token : {"a", "aa", "aaaa", "aaaaaaaa"}) vocabulary.tokens.add(token);
  vocabulary.types.assign(4, TokenType::normal);
  vocabulary.mergeable.assign(4, true);
  return vocabulary;
}

double bytes_for_each(const Vocabulary& vocabulary) {
  const Bpe bpe(vocabulary);
  const std::string text((1 << 17) + 8, 'a');  // just past where growing by doubling wastes most
  const size_t peak = quire::testing::peak_of([&] {
    Bpe::Symbols symbols;
    std::vector<int32_t> ids;
    bpe.append_ids(text, symbols, ids);
    EXPECT_EQ(ids.size(), text.size() / 8);
  });
  return static_cast<double>(peak) / static_cast<double>(text.size());
}

TEST(BpeMemory, IsInProportionToThePiece) {
  Vocabulary ranked = of_doubled_letters();
  MergeReader reader(ranked.tokens, 3);
  for (const char* merge : {"a a", "aa aa", "aaaa aaaa"}) reader.add(merge);
  ranked.merges = reader.take();
  EXPECT_LT(bytes_for_each(ranked), 33);

  Vocabulary scored = of_doubled_letters();
  scored.kind = VocabularyKind::spm_bpe;
  scored.scores = {0, -1, -2, -3};
  EXPECT_LT(bytes_for_each(scored), 41);
}

}  // namespace
}  // namespace quire::text
