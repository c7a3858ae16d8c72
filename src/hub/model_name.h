// A model's name at a hub: ORG/NAME[@REVISION][:FILE].
//
//   Qwen/Qwen3-0.6B                                the newest state of its main branch
//   Qwen/Qwen3-0.6B@refs/pr/3                      a branch, a tag or a commit
//   Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf      one file of many
//   Qwen/Qwen3-0.6B-GGUF:Q8_0                      the file with weights of this type
//
// What is not written like that is no name: a path that begins with "/", "./", "../" or "~", or has more or less than
// one slash before the "@" or ":", or ends with ".gguf" or ".safetensors" itself.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace quire::hub {

struct ModelName {
  std::string repository;     // ORG/NAME
  std::string revision = {};  // "": not said, which means the main branch
  std::string file = {};      // "": not said

  std::string revision_or_main() const { return revision.empty() ? "main" : revision; }
  friend bool operator==(const ModelName&, const ModelName&) = default;
};
std::optional<ModelName> parse_model_name(std::string_view text);
std::string to_string(const ModelName& name);  // as it was written

// Whether a path may be used below a folder of ours: segments of printable characters (in_quotes.h), none of them
// empty, "." or "..".
// What a hub lists and what people write is held to this before it becomes a file's name.
bool is_plain_path(std::string_view path);

// 40 hexadecimal digits.
bool is_commit(std::string_view text);

}  // namespace quire::hub
