// A Hugging Face folder from anywhere, as far as its vocabulary: tokenizer.json, and after it tokenizer_config.json and
// generation_config.json if they are there.
#include "fuzz.h"
#include "input_file.h"
#include "text/vocabulary.h"
#include "tokenizing.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::InputFolder folder;
  const char* const names[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"};
  const auto parts = fuzz::parts_of(fuzz::text_of(data, size), std::size(names));
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i].empty())
      folder.remove(names[i]);
    else
      folder.set(names[i], parts[i]);
  fuzz::attempt([] { fuzz::use(text::Tokenizer(text::vocabulary_from_folder(folder.path()))); });
  return 0;
}
