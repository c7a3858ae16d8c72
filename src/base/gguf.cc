#include "base/gguf.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "base/byte_reader.h"
#include "base/check.h"
#include "base/errors_about.h"
#include "base/gguf_value.h"
#include "base/in_quotes.h"

namespace quire {
namespace {

using Array = GgufFile::Array;
using Value = GgufFile::Value;
using Metadata = std::vector<std::pair<std::string_view, Value>>;
using Index = std::map<std::string_view, size_t>;

// Far above any file's, and low enough that the lists made for them stay small beside the file.
constexpr uint64_t kMostKeys = 1 << 16;
constexpr uint64_t kMostTensors = 1 << 20;
constexpr size_t kMostNameBytes = (1 << 16) - 1;
constexpr uint32_t kMostDims = 4;

// --- the header

struct Header {
  uint32_t version;
  uint64_t tensors, keys;
};

void check_version(uint32_t version) {
  const bool is_swapped = (version & 0xffff) == 0 && version != 0;
  check(!is_swapped, "is a big-endian GGUF file, quire reads little-endian ones");
  check(version == 2 || version == 3, "is GGUF version ", version, ", quire reads versions 2 and 3");
}

// Least bytes: what an entry takes with a name of one character.
void check_count(uint64_t count, uint64_t most, uint64_t least_bytes, const ByteReader& reader, const char* what) {
  check(count <= reader.left() / least_bytes, "claims ", count, " ", what, ", and only ", reader.left(),
        " bytes follow");
  check(count <= most, "has ", count, " ", what, ", more than ", most);
}

Header read_header(ByteReader& reader) {
  constexpr std::string_view kMagic = "GGUF";
  check(reader.left() > 0, "is empty");
  const auto magic = reader.take(std::min(reader.left(), kMagic.size()), "the magic number");
  const std::string_view begins{reinterpret_cast<const char*>(magic.data()), magic.size()};
  check(begins == kMagic, "is not a GGUF file: it begins with ", in_quotes(begins));
  Header header;
  header.version = reader.number<uint32_t>("the version");
  check_version(header.version);
  header.tensors = reader.number<uint64_t>("the number of tensors");
  header.keys = reader.number<uint64_t>("the number of keys");
  constexpr uint64_t kLeastKeyBytes = 8 + 1 + 4 + 1, kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
  check_count(header.keys, kMostKeys, kLeastKeyBytes, reader, "keys");
  check_count(header.tensors, kMostTensors, kLeastTensorBytes, reader, "tensors");
  return header;
}

// --- metadata

std::string_view read_name(ByteReader& reader, const char* what) {
  const std::string_view name = reader.text(what);
  check(!name.empty(), what, " is empty");
  check(name.size() <= kMostNameBytes, what, " has ", name.size(), " bytes, more than ", kMostNameBytes, ": ",
        in_quotes(name, 40));
  return name;
}

Metadata read_metadata(ByteReader& reader, uint64_t keys) {
  Metadata metadata;
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string_view key = errors_about(cat("key number ", i), [&] { return read_name(reader, "its name"); });
    const Value value = errors_about(cat("key ", in_quotes(key)), [&] {
      return read_gguf_value(reader, reader.number<uint32_t>("the type of its value"));
    });
    metadata.emplace_back(key, value);
  }
  return metadata;
}

uint64_t alignment_of(const Value* value) {
  constexpr uint64_t kDefault = 32;
  if (value == nullptr) return kDefault;
  const auto* alignment = std::get_if<uint64_t>(value);
  check(alignment != nullptr, "general.alignment is ", *value, ", not an unsigned integer");
  check(std::has_single_bit(*alignment), "general.alignment ", *alignment, " is not a power of two");
  return *alignment;
}

// --- tensors

// The names of the types, at the numbers that files give them.
constexpr const char* kTypeNames[] = {
    "F32",        "F16",        "Q4_0",       "Q4_1",  "Q4_2",     "Q4_3",     "Q5_0",     "Q5_1",    "Q8_0",
    "Q8_1",       "Q2_K",       "Q3_K",       "Q4_K",  "Q5_K",     "Q6_K",     "Q8_K",     "IQ2_XXS", "IQ2_XS",
    "IQ3_XXS",    "IQ1_S",      "IQ4_NL",     "IQ3_S", "IQ2_S",    "IQ4_XS",   "I8",       "I16",     "I32",
    "I64",        "F64",        "IQ1_M",      "BF16",  "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0",
    "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4", "NVFP4",    "Q1_0",     "Q2_0"};

BlockType block_type(uint32_t number) {
  check(number < std::size(kTypeNames), "has type ", number, ", which quire does not know");
  const std::string_view name = kTypeNames[number];
  std::string known;
  for (const BlockType type : kBlockTypes) {
    if (name == to_string(type)) return type;
    known += cat(known.empty() ? "" : ", ", type);
  }
  throw CheckError(cat("has type ", name, ", which quire does not compute with; it does with ", known));
}

// A tensor as the file describes it, not yet held against the file's data.
struct Claim {
  std::string_view name;
  BlockType type;
  std::vector<int64_t> dims;  // outermost first
  uint64_t offset;
  uint64_t bytes;
};

// The file has the contiguous dimension first.
std::vector<int64_t> read_dims(ByteReader& reader) {
  const auto count = reader.number<uint32_t>("the number of dimensions");
  check(count >= 1 && count <= kMostDims, "has ", count, " dimensions, not 1 to ", kMostDims);
  std::vector<int64_t> dims(count);
  for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
    const auto size = reader.number<uint64_t>("a dimension");
    check(size >= 1 && size <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), "has a dimension of ", size);
    *dim = static_cast<int64_t>(size);
  }
  return dims;
}

int64_t product(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    check(dim <= std::numeric_limits<int64_t>::max() / elements, "has more elements than 64 bits count");
    elements *= dim;
  }
  return elements;
}

Claim read_claim(ByteReader& reader, std::string_view name) {
  Claim claim{.name = name, .type = {}, .dims = read_dims(reader), .offset = 0, .bytes = 0};
  claim.type = block_type(reader.number<uint32_t>("the type"));
  claim.offset = reader.number<uint64_t>("the offset");
  const int32_t block = shape_of(claim.type).elements;
  check(claim.dims.back() % block == 0, "has rows of ", claim.dims.back(), " elements, which are not whole blocks of ",
        block, ", as ", claim.type, " has them");
  claim.bytes = static_cast<uint64_t>(bytes_of(claim.type, product(claim.dims)));
  return claim;
}

std::vector<Claim> read_claims(ByteReader& reader, uint64_t tensors) {
  std::vector<Claim> claims;
  for (uint64_t i = 0; i < tensors; ++i) {
    const std::string_view name = errors_about(cat("tensor number ", i), [&] { return read_name(reader, "its name"); });
    claims.push_back(errors_about(cat("tensor ", in_quotes(name)), [&] { return read_claim(reader, name); }));
  }
  return claims;
}

// What follows the descriptions, from the next multiple of the alignment on; nothing when that is past the end.
std::span<const std::byte> data_after(std::span<const std::byte> bytes, size_t position, uint64_t alignment) {
  const uint64_t past = position % alignment;
  const uint64_t padding = past == 0 ? 0 : alignment - past;
  return padding <= bytes.size() - position ? bytes.subspan(position + padding) : std::span<const std::byte>{};
}

void check_place(const Claim& claim, uint64_t alignment, size_t data_bytes) {
  check(claim.offset % alignment == 0, "tensor ", in_quotes(claim.name), " has offset ", claim.offset,
        ", which is not a multiple of the alignment ", alignment);
  check(claim.offset <= data_bytes && claim.bytes <= data_bytes - claim.offset, "tensor ", in_quotes(claim.name),
        " of ", claim.bytes, " bytes at offset ", claim.offset, " goes past the end of the file's ", data_bytes,
        " bytes of tensor data");
}

// Together the tensors are then no larger than the file, whatever their descriptions add up to.
void check_apart(const std::vector<Claim>& claims) {
  std::vector<const Claim*> ascending;
  for (const Claim& claim : claims) ascending.push_back(&claim);
  std::sort(ascending.begin(), ascending.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < ascending.size(); ++i) {
    const Claim &before = *ascending[i - 1], &after = *ascending[i];
    check(before.offset + before.bytes <= after.offset, "tensors ", in_quotes(before.name), " and ",
          in_quotes(after.name), " overlap at offset ", after.offset);
  }
}

std::vector<FileTensor> tensors_of(const std::vector<Claim>& claims, std::span<const std::byte> data,
                                   uint64_t alignment) {
  for (const Claim& claim : claims) check_place(claim, alignment, data.size());
  check_apart(claims);
  std::vector<FileTensor> tensors;
  for (const Claim& claim : claims)
    tensors.push_back({.name = std::string(claim.name),
                       .type = claim.type,
                       .dims = claim.dims,
                       .data = data.subspan(claim.offset, claim.bytes)});
  return tensors;
}

// --- finding

// `name_of` gives the name of an entry as a view into the file.
template <class Entries, class NameOf>
Index index_of(const Entries& entries, NameOf name_of, const char* what) {
  Index index;
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool is_new = index.emplace(name_of(entries[i]), i).second;
    check(is_new, what, " ", in_quotes(name_of(entries[i])), " occurs twice");
  }
  return index;
}

template <class Convert>
auto converted(const Array& array, Convert convert) {
  ByteReader reader(array.bytes);
  std::vector<decltype(convert(Value{}))> elements;
  elements.reserve(array.count);
  for (uint64_t i = 0; i < array.count; ++i) elements.push_back(convert(read_gguf_value(reader, array.type)));
  return elements;
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : file_(path) {
  errors_about(path, [&] {
    ByteReader reader(file_.bytes());
    const Header header = read_header(reader);
    version_ = header.version;
    metadata_ = read_metadata(reader, header.keys);
    key_index_ = index_of(
        metadata_, [](const auto& entry) { return entry.first; }, "key");
    const uint64_t alignment = alignment_of(find("general.alignment"));
    const std::vector<Claim> claims = read_claims(reader, header.tensors);
    tensor_index_ = index_of(
        claims, [](const Claim& claim) { return claim.name; }, "tensor");
    tensors_ = tensors_of(claims, data_after(file_.bytes(), reader.position(), alignment), alignment);
  });
}

const Value* GgufFile::find(std::string_view key) const {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? nullptr : &metadata_[found->second].second;
}

const FileTensor* GgufFile::tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

template <class Convert>
auto GgufFile::get(std::string_view key, Convert convert) const {
  return errors_about(cat(path(), ": key ", in_quotes(key)), [&] {
    const Value* value = find(key);
    check(value != nullptr, "is missing");
    return convert(*value);
  });
}

std::string GgufFile::text(std::string_view key) const { return std::string(get(key, to_text)); }
int64_t GgufFile::integer(std::string_view key) const { return get(key, to_integer); }
double GgufFile::number(std::string_view key) const { return get(key, to_number); }

std::string GgufFile::text(std::string_view key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}
bool GgufFile::flag(std::string_view key, bool otherwise) const { return has(key) ? get(key, to_flag) : otherwise; }

std::vector<std::string_view> GgufFile::strings(std::string_view key) const {
  return get(key, [](const Value& value) { return converted(to_array(value), to_text); });
}

std::vector<int64_t> GgufFile::integers(std::string_view key) const {
  const auto with_flags = [](const Value& element) {
    const auto* flag = std::get_if<bool>(&element);
    return flag ? int64_t{*flag} : to_integer(element);
  };
  return get(key, [&](const Value& value) { return converted(to_array(value), with_flags); });
}

std::vector<double> GgufFile::numbers(std::string_view key) const {
  return get(key, [](const Value& value) { return converted(to_array(value), to_number); });
}

}  // namespace quire
