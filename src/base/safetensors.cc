#include "base/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/byte_reader.h"
#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"
#include "base/strict_json.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// --- one file

constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMostTensorDims = 8;
// The header, a tensor, its shape; more tensors than the largest models have in all their files, and of each its facts.
// A tensor takes some 1 KB while the header is read.
constexpr JsonLimits kHeaderLimits{.depth = 3, .keys = 200'000, .values = 3'000'000};

// A tensor as the header describes it, not yet held against the file's data.
struct TensorClaim {
  std::string name;
  std::string dtype;
  std::vector<int64_t> dims;
  uint64_t begin, end;
};

constexpr BlockType kWeights[] = {BlockType::f32, BlockType::f16, BlockType::bf16, BlockType::f8_e4m3};

std::optional<BlockType> weight_type(std::string_view dtype) {
  for (const BlockType type : kWeights)
    if (dtype == to_string(type)) return type;
  return std::nullopt;
}

// Bytes of an element; 0: of no type that is read.
int64_t integer_bytes(std::string_view dtype) {
  return dtype == "I64" ? 8 : dtype == "I32" ? 4 : dtype == "U8" || dtype == "BOOL" ? 1 : 0;
}

json read_json_header(ByteReader& reader) {
  check(reader.left() > 0, "is empty");
  const auto bytes = reader.number<uint64_t>("the length of the header");
  check(bytes <= kMostHeaderBytes, "has a header of ", bytes, " bytes, more than ", kMostHeaderBytes,
        "; is it a safetensors file?");
  const auto header = reader.take(bytes, "the header");
  const std::string_view text{reinterpret_cast<const char*>(header.data()), header.size()};
  check(text.starts_with('{'), "has a header that begins with ", in_quotes(text.substr(0, 1)), ", not with {");
  return errors_about("header", [&] { return parse_strict_json(text, kHeaderLimits); });
}

const json& field(const json& tensor, const char* name) {
  check(tensor.is_object(), "is not an object but ", tensor.type_name());
  const auto found = tensor.find(name);
  check(found != tensor.end(), "has no ", name);
  return *found;
}

uint64_t whole_number(const json& value, const char* what) {
  check(value.is_number_unsigned(), what, " has ", in_quotes(value.dump()), ", not a whole number of at least 0");
  return value.get<uint64_t>();
}

std::string read_dtype(const json& tensor, bool with_integers) {
  const json& dtype = field(tensor, "dtype");
  check(dtype.is_string(), "dtype is not a string but ", dtype.type_name());
  const auto& name = dtype.get_ref<const std::string&>();
  if (weight_type(name) || (with_integers && integer_bytes(name) > 0)) return name;
  throw CheckError(cat("has dtype ", in_quotes(name),
                       ", which quire does not compute with; it does with F32, F16, BF16, F8_E4M3",
                       with_integers ? ", I64, I32, U8, BOOL" : ""));
}

std::vector<int64_t> read_dims(const json& tensor) {
  const json& shape = field(tensor, "shape");
  check(shape.is_array(), "shape is not an array but ", shape.type_name());
  check(shape.size() <= kMostTensorDims, "has ", shape.size(), " dimensions, more than ", kMostTensorDims);
  std::vector<int64_t> dims;
  int64_t elements = 1;
  for (const json& element : shape) {
    const uint64_t dim = whole_number(element, "shape");
    check(dim >= 1, "has a dimension of 0");
    check(dim <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / elements),
          "has more elements than 64 bits count");
    dims.push_back(static_cast<int64_t>(dim));
    elements *= dims.back();
  }
  return dims;
}

uint64_t bytes_claimed(const TensorClaim& claim) {
  int64_t elements = 1;
  for (const int64_t dim : claim.dims) elements *= dim;  // read_dims has seen that it fits
  if (const auto type = weight_type(claim.dtype)) return static_cast<uint64_t>(bytes_of(*type, elements));
  const int64_t bytes = integer_bytes(claim.dtype);
  check(elements <= std::numeric_limits<int64_t>::max() / bytes, "has more bytes than 64 bits count");
  return static_cast<uint64_t>(elements * bytes);
}

TensorClaim read_claim(const std::string& name, const json& tensor, bool with_integers) {
  TensorClaim claim{
      .name = name, .dtype = read_dtype(tensor, with_integers), .dims = read_dims(tensor), .begin = 0, .end = 0};
  const json& offsets = field(tensor, "data_offsets");
  check(offsets.is_array() && offsets.size() == 2, "data_offsets is not an array of two");
  claim.begin = whole_number(offsets[0], "data_offsets");
  claim.end = whole_number(offsets[1], "data_offsets");
  check(claim.begin <= claim.end, "begins at ", claim.begin, " and ends before, at ", claim.end);
  const uint64_t bytes = bytes_claimed(claim);
  check(claim.end - claim.begin == bytes, "has ", claim.end - claim.begin,
        " bytes in the file, its shape and type say ", bytes);
  return claim;
}

void check_notes(const json& notes) {
  check(notes.is_object(), "__metadata__ is not an object but ", notes.type_name());
  for (const auto& [key, value] : notes.items())
    check(value.is_string(), "__metadata__: ", in_quotes(key), " is not a string but ", value.type_name());
}

std::vector<TensorClaim> read_claims(const json& header, bool with_integers) {
  std::vector<TensorClaim> claims;
  for (const auto& entry : header.items()) {
    if (entry.key() == "__metadata__")
      check_notes(entry.value());
    else
      claims.push_back(errors_about(cat("tensor ", in_quotes(entry.key())),
                                    [&] { return read_claim(entry.key(), entry.value(), with_integers); }));
  }
  std::sort(claims.begin(), claims.end(), [](const TensorClaim& a, const TensorClaim& b) { return a.begin < b.begin; });
  return claims;
}

// The tensors fill the data from its first byte to its last, so that nothing can hide between them.
void check_places(const std::vector<TensorClaim>& claims, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const TensorClaim& claim : claims) {
    check(claim.begin == end, "tensor ", in_quotes(claim.name), " begins at ", claim.begin,
          ", the one before it ends at ", end, ": they ", claim.begin < end ? "overlap" : "leave a gap");
    end = claim.end;
  }
  check(end == data_bytes, "the tensors end at ", end, ", the file has ", data_bytes, " bytes of tensor data");
}

SafetensorsContents read_contents(std::span<const std::byte> file, bool with_integers) {
  ByteReader reader(file);
  const json header = read_json_header(reader);
  const std::vector<TensorClaim> claims = read_claims(header, with_integers);
  const auto data = reader.take(reader.left(), "the tensor data");
  check_places(claims, data.size());
  SafetensorsContents contents;
  if (const auto notes = header.find("__metadata__"); notes != header.end())
    contents.metadata = notes->get<std::map<std::string, std::string>>();
  for (const TensorClaim& claim : claims)
    contents.tensors.push_back({.name = claim.name,
                                .dtype = claim.dtype,
                                .dims = claim.dims,
                                .data = data.subspan(claim.begin, claim.end - claim.begin)});
  return contents;
}

}  // namespace

std::vector<FileTensor> read_safetensors(std::span<const std::byte> file) {
  std::vector<FileTensor> tensors;
  for (NamedTensor& tensor : read_contents(file, false).tensors)
    tensors.push_back({.name = std::move(tensor.name),
                       .type = *weight_type(tensor.dtype),
                       .dims = std::move(tensor.dims),
                       .data = tensor.data});
  return tensors;
}

SafetensorsContents read_safetensors_contents(std::span<const std::byte> file) { return read_contents(file, true); }

// --- a folder

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMostIndexBytes = 100'000'000;
// The map has two levels; the metadata beside it is free in form.
constexpr JsonLimits kIndexLimits{.depth = 8, .keys = 500'000, .values = 1'000'000};

// Which file holds which tensor.
using WeightMap = std::map<std::string, std::string>;

// A plain name cannot lead out of the folder.
void check_plain(const std::string& file) {
  const bool is_plain = !file.empty() && file != "." && file.find('/') == std::string::npos &&
                        file.find('\0') == std::string::npos && file.find("..") == std::string::npos;
  check(is_plain, "weight_map names the file ", in_quotes(file), ", which is not a plain name");
}

WeightMap weight_map_of(const json& index) {
  const auto found = index.find("weight_map");
  check(found != index.end() && found->is_object(), "has no object weight_map");
  check(!found->empty(), "has an empty weight_map");
  WeightMap map;
  for (const auto& [tensor, file] : found->items()) {
    check(file.is_string(), "weight_map: ", in_quotes(tensor), " is not a file name but ", file.type_name());
    check_plain(file.get_ref<const std::string&>());
    map.emplace(tensor, file.get<std::string>());
  }
  return map;
}

WeightMap read_index(const std::string& path) {
  const json index = read_json_file(path, kMostIndexBytes, kIndexLimits);
  return errors_about(path, [&] { return weight_map_of(index); });
}

bool is_inside(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

bool exists(const std::string& path) {
  std::error_code unreadable;  // counts as not there
  return fs::exists(path, unreadable);
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::string& folder) {
  std::error_code unreadable;
  check(fs::is_directory(folder, unreadable), folder, ": is not a folder");
  if (exists(fs::path(folder) / kSingleFile))
    add_files(folder, {kSingleFile});
  else
    add_shards(folder);
}

void SafetensorsFolder::add_shards(const std::string& folder) {
  const std::string index_path = fs::path(folder) / kIndexFile;
  check(exists(index_path), folder, ": has neither ", kSingleFile, " nor ", kIndexFile);
  const WeightMap map = read_index(index_path);
  std::set<std::string> shards;
  for (const auto& [name, file] : map) shards.insert(file);
  add_files(folder, shards);
  for (const auto& [name, file] : map) {
    const FileTensor* found = tensor(name);
    const auto place = static_cast<size_t>(std::distance(shards.begin(), shards.find(file)));
    check(found && is_inside(found->data, files_[place].bytes()), index_path, ": says that ", in_quotes(name),
          " is in ", in_quotes(file), ", where it is not");
  }
}

void SafetensorsFolder::add_files(const std::string& folder, const std::set<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = fs::path(folder) / name;
    files_.emplace_back(path);
    std::vector<FileTensor> added = errors_about(path, [&] { return read_safetensors(files_.back().bytes()); });
    std::move(added.begin(), added.end(), std::back_inserter(tensors_));
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                        [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors_.end()) throw CheckError(cat(folder, ": tensor ", in_quotes(twice->name), " is in two files"));
}

const FileTensor* SafetensorsFolder::tensor(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const FileTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

}  // namespace quire
