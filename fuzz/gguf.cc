// A GGUF file from anywhere: its metadata and tensors, the model's weights packed as for running, the vocabulary in
// use.
#include "base/gguf.h"

#include "fuzz.h"
#include "input_file.h"
#include "model/model.h"
#include "text/vocabulary.h"
#include "tokenizing.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::InputFile file;
  static Exec exec({.threads = 1});
  file.set(fuzz::text_of(data, size));
  fuzz::attempt([] {
    const GgufFile gguf(file.path());
    for (const auto& [key, value] : gguf.metadata()) (void)to_string(value);
    fuzz::attempt([&] { fuzz::use(text::Tokenizer(text::vocabulary_from_gguf(gguf))); });
    (void)model::Model(file.path(), exec);
  });
  return 0;
}
