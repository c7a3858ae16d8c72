// All that a model's files say about turning text into token ids and back, as plain data. Tokenizer works from it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/merges.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/string_table.h"

namespace quire {
class GgufFile;
}

namespace quire::text {

enum class VocabularyKind {
  byte_bpe,  // tokens are bytes, written in the byte alphabet (byte_token.h); pairs of bytes merge
  spm_bpe,   // tokens are characters, spaces written as U+2581; pairs of characters merge; rare ones fall back to bytes
};

constexpr std::string_view kVisibleSpace = "\u2581";  // of spm_bpe

enum class TokenType : uint8_t {
  normal,
  unknown,       // stands for what no token spells
  control,       // never a part of plain text: the start of a turn, the end of a text
  user_defined,  // plain text that is one token wherever it occurs
  unused,
  byte,  // <0xE2> and the like, for byte fallback
};

// A token that is looked for in the text itself, before anything else is done to it.
struct AddedToken {
  int32_t id = 0;
  bool special = false;      // only where specials are to be parsed; left out of decoded text on request
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // ... after it
  bool single_word = false;  // not inside a word
  bool normalized = false;   // looked for in the normalised text
};

struct Vocabulary {
  VocabularyKind kind = VocabularyKind::byte_bpe;
  StringTable tokens;            // [tokens] as the file writes them
  std::vector<TokenType> types;  // [tokens]
  std::vector<bool> mergeable;   // [tokens] characters may merge into it; others are only looked for whole (added)

  // Which neighbours merge first: by rank in merges or, when there are none, by the score of what they merge into.
  std::vector<Merge> merges;
  std::vector<float> scores;   // [tokens], or none when merges are ranked
  bool ignore_merges = false;  // a piece that is a token is that token, whatever merges would give
  bool byte_fallback = false;  // spm_bpe: a character that is no token becomes the tokens of its bytes
  bool fuse_unknown = false;   // neighbouring characters that no token spells are one unknown token

  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<AddedToken> added;

  std::optional<int32_t> bos, eos, eot, unk, pad;
  std::vector<int32_t> prefix;     // what the model wants before a text: mostly its bos, or nothing
  std::vector<int32_t> suffix;     // ... after it
  std::vector<int32_t> end_ids;    // generation stops at any of these; ascending
  bool drops_first_space = false;  // encoding put a space before the text; decoding takes it away

  std::optional<std::string> chat_template;
};

// Throws CheckError, one line that begins with the path, for what is missing, out of range or not supported.
Vocabulary vocabulary_from_gguf(const GgufFile& file);
Vocabulary vocabulary_from_folder(const std::string& folder);  // tokenizer.json and its companions
Vocabulary vocabulary_from_path(const std::string& path);      // either of the two, whichever the path is

}  // namespace quire::text
