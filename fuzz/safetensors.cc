// A Hugging Face folder from anywhere, as far as a model's weights are read: config.json, an index of shards if there
// is one, and a file of tensors.
#include "base/safetensors.h"

#include <span>

#include "fuzz.h"
#include "input_file.h"
#include "model/model.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::InputFolder folder;
  static Exec exec({.threads = 1});
  const auto parts = fuzz::parts_of(fuzz::text_of(data, size), 3);
  const bool sharded = !parts[1].empty();
  folder.set("config.json", parts[0]);
  folder.set("model.safetensors.index.json", parts[1]);
  folder.set(sharded ? "shard.safetensors" : "model.safetensors", parts[2]);
  folder.remove(sharded ? "model.safetensors" : "shard.safetensors");
  fuzz::attempt([] { (void)model::Model(folder.path(), exec); });
  fuzz::attempt([&] { (void)read_safetensors_contents(std::as_bytes(std::span(parts[2]))); });
  return 0;
}
