// Which of a repository's files make up the model that quire runs: one GGUF file, or the files of a Hugging Face
// folder.
//
// Without a wish, a GGUF file comes before a folder (it is smaller, and as fast as quire gets), and of many the one
// whose weights' type comes first in kGgufTypes. What cannot be a model by itself is passed over: projectors for images
// ("mmproj"), importance matrices, parts of a split file, files in types that quire does not compute with.
//
// Errors   CheckError, to follow "ORG/NAME ": "has no ...".
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace quire::hub {

// The best first: four bits, which decode fastest at little loss, then more.
inline constexpr std::array<std::string_view, 15> kGgufTypes = {"Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K", "Q4_0",
                                                                "Q4_1",   "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1",
                                                                "Q6_K",   "Q8_0",   "BF16",   "F16",  "F32"};

struct ModelFiles {
  std::vector<std::string> files;  // all that must be there
  std::string gguf = {};           // the file to load; "": the folder that holds them
  int of_many = 1;                 // GGUF files that would have done, too
  friend bool operator==(const ModelFiles&, const ModelFiles&) = default;
};

// The wish is "", a file's name, or a type of weights ("Q8_0").
ModelFiles choose_files(const std::vector<std::string>& paths, std::string_view wish);

// The type of weights that a GGUF file's name tells, in capitals; "": none. Also types that quire does not compute
// with.
std::string gguf_type(std::string_view path);

}  // namespace quire::hub
