#include "model/testing_gguf.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/types.h"

namespace quire::model::testing {
namespace {

constexpr int64_t kAlignment = 32;

uint32_t file_type(BlockType type) {
  switch (type) {
    case BlockType::f32:
      return 0;
    case BlockType::f16:
      return 1;
    case BlockType::q4_0:
      return 2;
    case BlockType::q4_1:
      return 3;
    case BlockType::q5_0:
      return 6;
    case BlockType::q5_1:
      return 7;
    case BlockType::q8_0:
      return 8;
    case BlockType::q4_k:
      return 12;
    case BlockType::q5_k:
      return 13;
    case BlockType::q6_k:
      return 14;
    case BlockType::bf16:
      return 30;
    case BlockType::f8_e4m3:
      break;
  }
  throw CheckError("a type without a number");
}

class Bytes {
 public:
  template <class T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(const std::string& value) {
    number<uint64_t>(value.size());
    bytes_ += value;
  }
  void raw(const std::vector<std::byte>& data) {
    bytes_.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
  void align() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment, '\0'); }
  const std::string& all() const { return bytes_; }

 private:
  std::string bytes_;
};

void write_value(Bytes& out, const GgufWriter::Value& value) {
  constexpr uint32_t kNumbers[] = {4, 6, 8, 7};  // how the file numbers the alternatives
  out.number(kNumbers[value.index()]);
  if (const auto* count = std::get_if<uint32_t>(&value))
    out.number(*count);
  else if (const auto* number = std::get_if<float>(&value))
    out.number(*number);
  else if (const auto* flag = std::get_if<bool>(&value))
    out.number<uint8_t>(*flag);
  else
    out.text(std::get<std::string>(value));
}

// Where a block of random bytes needs its scale and minimum, and what they are for a spread of 1.
struct Scales {
  int32_t scale_at;
  float scale;
  int32_t minimum_at;  // -1: none
  float minimum;
};
Scales scales_of(BlockType type) {
  switch (type) {
    case BlockType::q8_0:
      return {0, 1 / 74.0f, -1, 0};
    case BlockType::q4_0:
      return {0, 1 / 4.6f, -1, 0};
    case BlockType::q5_0:
      return {0, 1 / 9.2f, -1, 0};
    case BlockType::q4_1:
      return {0, 1 / 4.6f, 2, -7.5f / 4.6f};
    case BlockType::q5_1:
      return {0, 1 / 9.2f, 2, -15.5f / 9.2f};
    case BlockType::q4_k:
      return {0, 1 / 300.0f, 2, 7.5f / 300.0f};
    case BlockType::q5_k:
      return {0, 1 / 600.0f, 2, 15.5f / 600.0f};
    case BlockType::q6_k:
      return {208, 1 / 1300.0f, -1, 0};
    default:
      throw CheckError(cat("no blocks of ", to_string(type)));
  }
}

void put_f16(std::byte* at, float value) {
  const f16 narrow = to_f16(value);
  std::memcpy(at, &narrow, sizeof(narrow));
}

std::vector<std::byte> random_blocks(BlockType type, int64_t elements, float spread, std::mt19937_64& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(bytes_of(type, elements)));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const Scales scales = scales_of(type);
  const size_t block = static_cast<size_t>(shape_of(type).bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    const float factor = spread * (0.5f + static_cast<float>(random() % 1000) / 1000.0f);
    put_f16(bytes.data() + at + scales.scale_at, factor * scales.scale);
    if (scales.minimum_at >= 0) put_f16(bytes.data() + at + scales.minimum_at, factor * scales.minimum);
  }
  return bytes;
}

std::vector<std::byte> random_numbers(Dtype type, int64_t elements, float spread, std::mt19937_64& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(elements * size_of(type)));
  std::normal_distribution<float> normal(0, spread);
  for (int64_t i = 0; i < elements; ++i) store_element(type, bytes.data(), i, normal(random));
  return bytes;
}

}  // namespace

void GgufWriter::set(const std::string& key, Value value) {
  unset(key);
  metadata_.emplace_back(key, std::move(value));
}

void GgufWriter::unset(const std::string& key) {
  std::erase_if(metadata_, [&](const auto& entry) { return entry.first == key; });
}

void GgufWriter::tensor(const std::string& name, BlockType type, std::vector<int64_t> dims,
                        std::vector<std::byte> data) {
  remove_tensor(name);
  tensors_.push_back({name, type, std::move(dims), std::move(data)});
}

void GgufWriter::remove_tensor(const std::string& name) {
  std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
}

void GgufWriter::write(const std::string& path) const {
  Bytes head, body;
  head.number<uint32_t>(0x46554747);  // "GGUF"
  head.number<uint32_t>(3);
  head.number<uint64_t>(tensors_.size());
  head.number<uint64_t>(metadata_.size());
  for (const auto& [key, value] : metadata_) {
    head.text(key);
    write_value(head, value);
  }
  for (const Tensor& tensor : tensors_) {
    head.text(tensor.name);
    head.number(static_cast<uint32_t>(tensor.dims.size()));
    for (auto dim = tensor.dims.rbegin(); dim != tensor.dims.rend(); ++dim) head.number(static_cast<uint64_t>(*dim));
    head.number(file_type(tensor.type));
    head.number<uint64_t>(body.all().size());
    body.raw(tensor.data);
    body.align();
  }
  head.align();
  std::ofstream file(path, std::ios::binary);
  file << head.all() << body.all();
  check(file.good(), "cannot write ", path);
}

std::vector<std::byte> random_weights(BlockType type, int64_t elements, float spread, std::mt19937_64& random) {
  switch (type) {
    case BlockType::f32:
      return random_numbers(Dtype::f32, elements, spread, random);
    case BlockType::f16:
      return random_numbers(Dtype::f16, elements, spread, random);
    case BlockType::bf16:
      return random_numbers(Dtype::bf16, elements, spread, random);
    default:
      return random_blocks(type, elements, spread, random);
  }
}

}  // namespace quire::model::testing
