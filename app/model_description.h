// What `quire inspect model` says about a model's files: gathered from either format, printed elsewhere.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/blocks.h"

namespace quire {

struct ModelDescription {
  struct File {
    std::string path;
    int64_t bytes;
  };
  struct Entry {
    std::string key;
    nlohmann::ordered_json value;  // of an array in a GGUF file: its count and its first elements
    std::string shown;             // for people, on one line
  };
  struct Tensor {
    std::string name;
    BlockType type;
    std::vector<int64_t> dims;  // outermost first
    int64_t elements;
    int64_t bytes;
  };
  struct Blocks {
    int32_t first_layer, last_layer;
    int64_t rows;
    std::string choice;  // who computes them on the CPU (model/blocks.h)
  };

  std::string format;  // "GGUF version 3", "safetensors"
  std::vector<File> files;
  std::vector<Entry> facts;     // of the architecture, under one name for both formats
  std::vector<Entry> metadata;  // as the files have it
  std::vector<Tensor> tensors;
  std::vector<Blocks> blocks = {};  // none: quire does not run the model,
  std::string not_run = {};         // because of this
};

// The path of a GGUF file, or of a Hugging Face folder. Throws CheckError "PATH: what is wrong".
ModelDescription describe_model(const std::string& path);

}  // namespace quire
