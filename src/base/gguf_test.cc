#include "base/gguf.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/expect_refused.h"
#include "base/testing/gguf_bytes.h"
#include "base/testing/temporary_folder.h"

namespace quire {
namespace {

using namespace gguf_type;

constexpr uint64_t kMost64 = std::numeric_limits<uint64_t>::max();

class Gguf : public testing::Test {
 protected:
  GgufFile open(const std::string& bytes) const { return GgufFile(folder_.put("model.gguf", bytes)); }
  GgufFile open(const GgufBytes& bytes) const { return open(bytes.str()); }
  void refuse(const GgufBytes& bytes, const std::string& part) const { refuse(bytes.str(), part); }
  void refuse(const std::string& bytes, const std::string& part) const {
    expect_refused([&] { open(bytes); }, part);
    expect_refused([&] { open(bytes); }, folder_.path("model.gguf") + ": ");
  }

  TemporaryFolder folder_;
};

// Every type of value, two tensors: a matrix of F16 [2, 3] and a vector of one Q8_0 block.
GgufBytes small_file(uint32_t version = 3) {
  GgufBytes file(2, 15, version);
  file.key("a.u8", u8, uint8_t{200}).key("a.i8", i8, int8_t{-100}).key("a.u16", u16, uint16_t{65000});
  file.key("a.i16", i16, int16_t{-30000}).key("a.u32", u32, uint32_t{4000000000u}).key("a.i32", i32, -2000000000);
  file.key("a.f32", f32, 0.5f).key("a.bool", boolean, uint8_t{1}).key_text("a.text", "llama");
  file.key("a.u64", u64, kMost64).key("a.i64", i64, int64_t{-5}).key("a.f64", f64, 0.1);
  file.key_array("a.words", string, 3).text("one").text("").text("three");
  file.key_array("a.numbers", i16, 2).number(int16_t{-7}).number(int16_t{8});
  file.key_array("a.flags", boolean, 2).number(uint8_t{1}).number(uint8_t{0});
  file.tensor("matrix", {3, 2}, tensor_f16, 0).tensor("vector", {32}, tensor_q8_0, 32);
  return file.pad().data(12, 'm').pad().data(34, 'v');
}

// Reads everything that the file says, as a caller may, and adds up the tensors' bytes.
int64_t read_all(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    to_string(value);
    const auto* array = std::get_if<GgufFile::Array>(&value);
    if (array == nullptr) continue;
    if (array->type == string) {
      size_t bytes = 0;
      for (const std::string_view element : file.strings(key)) bytes += element.size();
      EXPECT_LE(bytes, array->bytes.size());
    } else {
      EXPECT_EQ(first_elements(*array, array->count).size(), array->count);
    }
  }
  int64_t sum = 0;
  for (const FileTensor& tensor : file.tensors())
    for (const std::byte byte : tensor.data) sum += static_cast<int>(byte);
  return sum;
}

// --- what a file says

TEST_F(Gguf, Scalars) {
  for (const uint32_t version : {2u, 3u}) {
    const GgufFile file = open(small_file(version));
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.metadata().size(), 15u);
    EXPECT_EQ(file.integer("a.u8"), 200);
    EXPECT_EQ(file.integer("a.i8"), -100);
    EXPECT_EQ(file.integer("a.u16"), 65000);
    EXPECT_EQ(file.integer("a.i16"), -30000);
    EXPECT_EQ(file.integer("a.u32"), 4000000000);
    EXPECT_EQ(file.integer("a.i32"), -2000000000);
    EXPECT_EQ(file.integer("a.i64"), -5);
    EXPECT_EQ(file.number("a.f32"), 0.5);
    EXPECT_EQ(file.number("a.f64"), 0.1);
    EXPECT_EQ(file.number("a.i8"), -100.0);
    EXPECT_EQ(file.number("a.u8"), 200.0);
    EXPECT_TRUE(file.flag("a.bool", false));
    EXPECT_EQ(file.text("a.text"), "llama");
    EXPECT_EQ(std::get<uint64_t>(*file.find("a.u64")), kMost64);
  }
}

TEST_F(Gguf, Arrays) {
  const GgufFile file = open(small_file());
  EXPECT_EQ(file.strings("a.words"), (std::vector<std::string_view>{"one", "", "three"}));
  EXPECT_EQ(file.integers("a.numbers"), (std::vector<int64_t>{-7, 8}));
  EXPECT_EQ(file.integers("a.flags"), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(file.numbers("a.numbers"), (std::vector<double>{-7, 8}));
  EXPECT_EQ(first_elements(std::get<GgufFile::Array>(*file.find("a.words")), 1).size(), 1u);
}

TEST_F(Gguf, DefaultsAreForMissingKeysOnly) {
  const GgufFile file = open(small_file());
  EXPECT_FALSE(file.has("none"));
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_EQ(file.text("none", "x"), "x");
  EXPECT_TRUE(file.flag("none", true));
  EXPECT_EQ(file.text("a.text", "x"), "llama");
  expect_refused([&] { file.text("a.u8", "x"); }, "key \"a.u8\": is the integer 200, not a string");
}

TEST_F(Gguf, GettersNameTheKeyAndWhatItIsInstead) {
  const GgufFile file = open(small_file());
  const auto refused = [](auto body, const std::string& part) { expect_refused(body, part); };
  refused([&] { file.integer("none"); }, "model.gguf: key \"none\": is missing");
  refused([&] { file.strings("none"); }, "key \"none\": is missing");
  refused([&] { file.integer("a.f32"); }, "key \"a.f32\": is the number 0.5, not an integer");
  refused([&] { file.integer("a.u64"); }, "is 18446744073709551615, more than");
  refused([&] { file.text("a.u8"); }, "key \"a.u8\": is the integer 200, not a string");
  refused([&] { file.number("a.bool"); }, "is the flag true, not a number");
  refused([&] { file.flag("a.u8", false); }, "not a flag");
  refused([&] { file.strings("a.text"); }, "not an array");
  refused([&] { file.strings("a.numbers"); }, "is the integer -7, not a string");
  refused([&] { file.integers("a.words"); }, "is the string \"one\", not an integer");
}

TEST_F(Gguf, TensorsHaveTheirBytesAndTheOutermostDimensionFirst) {
  const GgufFile file = open(small_file());
  ASSERT_EQ(file.tensors().size(), 2u);
  const FileTensor* matrix = file.tensor("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_EQ(matrix->type, BlockType::f16);
  EXPECT_EQ(matrix->dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(matrix->data.data()), matrix->data.size()), std::string(12, 'm'));
  const FileTensor& vector = file.tensors()[1];
  EXPECT_EQ(vector.name, "vector");
  EXPECT_EQ(vector.type, BlockType::q8_0);
  EXPECT_EQ(vector.data.size(), 34u);
  EXPECT_EQ(static_cast<char>(vector.data.back()), 'v');
  EXPECT_EQ(file.tensor("none"), nullptr);
}

TEST_F(Gguf, ViewsStayGoodWhenTheFileMoves) {
  GgufFile first = open(small_file());
  const std::vector<std::string_view> words = first.strings("a.words");
  const GgufFile second(std::move(first));
  EXPECT_EQ(words[2], "three");
  EXPECT_EQ(second.text("a.text"), "llama");
  EXPECT_EQ(second.tensor("vector")->data.size(), 34u);
}

TEST_F(Gguf, ValuesAreShownShortened) {
  GgufBytes bytes(0, 2);
  bytes.key_text("long", std::string(5000, 'x')).key_array("many", u8, 9).raw("123456789");
  const GgufFile file = open(bytes);
  EXPECT_EQ(to_string(*file.find("long")), "\"" + std::string(80, 'x') + "\"... (5000 bytes)");
  EXPECT_EQ(to_string(*file.find("many")), "[9 of type u8: 49, 50, 51, 52, ...]");
  EXPECT_EQ(to_string(GgufFile::Value(1e-5)), "1e-05");
}

TEST_F(Gguf, AVocabularyWithoutTensorsNeedsNoPadding) {
  const GgufFile file = open(GgufBytes(0, 1).key_u32("x", 1));
  EXPECT_TRUE(file.tensors().empty());
}

TEST_F(Gguf, AlignmentMovesTheData) {
  GgufBytes bytes(2, 1);
  bytes.key_u32("general.alignment", 128).tensor("a", {1}, tensor_f32, 0).tensor("b", {1}, tensor_f32, 128);
  bytes.pad(128).data(4, 'a').pad(128).data(4, 'b');
  const GgufFile file = open(bytes);
  EXPECT_EQ(static_cast<char>(file.tensor("a")->data[0]), 'a');
  EXPECT_EQ(static_cast<char>(file.tensor("b")->data[0]), 'b');
}

TEST_F(Gguf, EveryTypeThatQuireComputesWith) {
  const std::pair<uint32_t, BlockType> types[] = {
      {0, BlockType::f32},   {1, BlockType::f16},   {2, BlockType::q4_0},  {3, BlockType::q4_1},
      {6, BlockType::q5_0},  {7, BlockType::q5_1},  {8, BlockType::q8_0},  {12, BlockType::q4_k},
      {13, BlockType::q5_k}, {14, BlockType::q6_k}, {30, BlockType::bf16},
  };
  for (const auto& [number, type] : types) {
    const auto bytes = static_cast<size_t>(bytes_of(type, 512));
    const GgufFile file = open(GgufBytes(1, 0).tensor("t", {256, 2}, number, 0).pad().data(bytes));
    EXPECT_EQ(file.tensors()[0].type, type);
    EXPECT_EQ(file.tensors()[0].data.size(), bytes);
  }
}

// --- files that are not what they say

TEST_F(Gguf, WhatIsNoGgufFile) {
  expect_refused([&] { GgufFile file(folder_.path()); }, "is a folder");
  expect_refused([&] { GgufFile file(folder_.path("none.gguf")); }, "No such file");
  refuse("", "is empty");
  refuse("GG", "is not a GGUF file: it begins with \"GG\"");
  refuse(
      "\x7f"
      "ELF and more",
      "is not a GGUF file: it begins with \"\\x7fELF\"");
}

TEST_F(Gguf, OtherVersionsAndByteOrders) {
  refuse(GgufBytes(0, 0, 1), "is GGUF version 1, quire reads versions 2 and 3");
  refuse(GgufBytes(0, 0, 4), "is GGUF version 4");
  refuse(GgufBytes(0, 0, 0), "is GGUF version 0");
  refuse(GgufBytes(0, 0, 3u << 24), "is a big-endian GGUF file");
}

TEST_F(Gguf, CountsBeyondTheFile) {
  for (const uint64_t count : {uint64_t{100}, uint64_t{1} << 32, uint64_t{1} << 63, kMost64, kMost64 / 14 + 1}) {
    refuse(GgufBytes(0, count).data(64), "claims " + std::to_string(count) + " keys, and only 64 bytes follow");
    refuse(GgufBytes(count, 0).data(64), "claims " + std::to_string(count) + " tensors, and only 64 bytes follow");
  }
  refuse(GgufBytes(0, 70000).data(2 << 20), "has 70000 keys, more than 65536");
}

TEST_F(Gguf, StringsBeyondTheFile) {
  for (const uint64_t length : {uint64_t{100}, uint64_t{1} << 63, kMost64, kMost64 - 7}) {
    const std::string claimed = "of " + std::to_string(length) + " bytes";
    refuse(GgufBytes(0, 1).number(length).data(40), "key number 0: its name " + claimed);
    refuse(GgufBytes(0, 1).text("k").number(uint32_t{string}).number(length).data(40),
           "key \"k\": a string " + claimed);
    refuse(GgufBytes(1, 0).number(length).data(40), "tensor number 0: its name " + claimed);
    refuse(GgufBytes(0, 1).key_array("k", string, 2).text("x").number(length).data(40),
           "key \"k\": a string of an array " + claimed);
  }
}

TEST_F(Gguf, NamesTooLongOrEmpty) {
  refuse(GgufBytes(0, 1).text("").data(40), "key number 0: its name is empty");
  refuse(GgufBytes(1, 0).text("").data(40), "tensor number 0: its name is empty");
  refuse(GgufBytes(0, 1).text(std::string(70000, 'k')).data(40), "its name has 70000 bytes, more than 65535");
  open(GgufBytes(0, 1).key_u32(std::string(65535, 'k'), 1));
}

TEST_F(Gguf, ArraysBeyondTheFile) {
  refuse(GgufBytes(0, 1).key_array("k", u64, 6).data(40), "key \"k\": an array of 6 elements of type u64");
  for (const uint64_t count : {uint64_t{1} << 61, (uint64_t{1} << 61) + 1, uint64_t{1} << 63, kMost64})
    for (const uint32_t type : {u8, u32, u64, f64, string})
      refuse(GgufBytes(0, 1).key_array("k", type, count).data(40),
             "key \"k\": an array of " + std::to_string(count) + " elements");
}

TEST_F(Gguf, TypesOfValuesThatDoNotExist) {
  refuse(GgufBytes(0, 1).key("k", 13, uint64_t{0}), "key \"k\": has type 13, which does not exist");
  refuse(GgufBytes(0, 1).key("k", 0xffffffff, uint64_t{0}), "has type 4294967295");
  refuse(GgufBytes(0, 1).key_array("k", 77, 0).data(8), "an array has elements of type 77");
  refuse(GgufBytes(0, 1).key_array("k", array, 1).number(uint32_t{u8}).number(uint64_t{1}).data(1),
         "key \"k\": is an array of arrays");
}

TEST_F(Gguf, NestedArraysDoNotRecurse) {
  GgufBytes bytes(0, 1);
  bytes.key_array("k", array, 1);
  for (int depth = 0; depth < 100000; ++depth) bytes.number(uint32_t{array}).number(uint64_t{1});
  refuse(bytes, "is an array of arrays");
}

TEST_F(Gguf, KeysAndTensorsThatOccurTwice) {
  refuse(GgufBytes(0, 2).key_u32("k", 1).key_text("k", "x"), "key \"k\" occurs twice");
  refuse(GgufBytes(2, 0).tensor("t", {8}, tensor_f32, 0).tensor("t", {8}, tensor_f32, 32).pad().data(64),
         "tensor \"t\" occurs twice");
}

TEST_F(Gguf, Alignments) {
  const auto aligned = [](uint32_t type, auto value) {
    return GgufBytes(1, 1).key("general.alignment", type, value).tensor("t", {1}, tensor_f32, 0).pad().data(64);
  };
  open(aligned(u32, 32u));
  refuse(aligned(u32, 0u), "general.alignment 0 is not a power of two");
  refuse(aligned(u32, 48u), "general.alignment 48 is not a power of two");
  refuse(aligned(u64, kMost64), "is not a power of two");
  refuse(aligned(u64, uint64_t{1} << 63), "goes past the end of the file's 0 bytes of tensor data");
  refuse(aligned(f32, 32.0f), "general.alignment is 32, not an unsigned integer");
  refuse(aligned(i32, -32), "general.alignment is -32, not an unsigned integer");
  refuse(GgufBytes(0, 1).key_text("general.alignment", "32"), "general.alignment is \"32\", not");
  refuse(GgufBytes(0, 1).key_array("general.alignment", u32, 1).number(32u), "not an unsigned integer");
}

TEST_F(Gguf, DimensionsOutOfBounds) {
  const auto shaped = [](std::initializer_list<uint64_t> dims, uint32_t type = tensor_f32) {
    return GgufBytes(1, 0).tensor("t", dims, type, 0).pad().data(256);
  };
  open(shaped({2, 2, 2, 2}));
  refuse(shaped({1, 1, 1, 1, 1}), "tensor \"t\": has 5 dimensions, not 1 to 4");
  refuse(shaped({}), "tensor \"t\": has 0 dimensions");
  refuse(GgufBytes(1, 0).text("t").number(0xffffffffu).data(256), "has 4294967295 dimensions");
  refuse(shaped({0}), "tensor \"t\": has a dimension of 0");
  refuse(shaped({4, 0}), "has a dimension of 0");
  refuse(shaped({kMost64}), "has a dimension of 18446744073709551615");
  refuse(shaped({uint64_t{1} << 63}), "has a dimension of 9223372036854775808");
}

// Products that come out small when they wrap.
TEST_F(Gguf, ProductsOfDimensionsThatWrap) {
  const auto shaped = [](std::initializer_list<uint64_t> dims, uint32_t type = tensor_f32) {
    return GgufBytes(1, 0).tensor("t", dims, type, 0).pad().data(256);
  };
  constexpr uint64_t k32 = uint64_t{1} << 32;
  refuse(shaped({k32, k32}), "has more elements than 64 bits count");
  refuse(shaped({k32, k32, 1, 16}), "has more elements than 64 bits count");
  refuse(shaped({k32, k32 / 2}), "has more elements than 64 bits count");
  refuse(shaped({uint64_t{1} << 62}), "more bytes than 64 bits count");  // times 4 bytes: 0
  refuse(shaped({k32, k32 / 8}, tensor_f16), "goes past the end");
  refuse(shaped({3, 6148914691236517206}), "has more elements than 64 bits count");  // 2^64 + 2
}

TEST_F(Gguf, PlacesOutsideTheData) {
  const auto placed = [](uint64_t elements, uint64_t offset) {
    return GgufBytes(1, 0).tensor("t", {elements}, tensor_f32, offset).pad().data(256);
  };
  open(placed(64, 0));
  open(placed(8, 224));
  refuse(placed(65, 0), "tensor \"t\" of 260 bytes at offset 0 goes past the end of the file's 256 bytes");
  refuse(placed(16, 224), "goes past the end");
  refuse(placed(1, 256), "goes past the end");
  refuse(placed(1, uint64_t{1} << 40), "goes past the end");
  refuse(placed(8, kMost64 - 31), "at offset 18446744073709551584 goes past the end");  // the sum wraps to 0
  refuse(placed(1, 4), "has offset 4, which is not a multiple of the alignment 32");
  refuse(GgufBytes(1, 0).tensor("t", {1}, tensor_f32, 0), "file's 0 bytes of tensor data");
}

// Their sizes add up to 2^64 and more; each alone is refused, so no sum is ever made of them.
TEST_F(Gguf, SizesWhoseSumWraps) {
  constexpr uint64_t k60 = uint64_t{1} << 60;
  GgufBytes bytes(5, 0);
  for (uint64_t i = 0; i < 4; ++i) bytes.tensor("t" + std::to_string(i), {k60}, tensor_f32, i * 4 * k60);
  refuse(bytes.tensor("small", {8}, tensor_f32, 0).pad().data(256), "tensor \"t0\" of 4611686018427387904 bytes");
}

TEST_F(Gguf, TensorsThatOverlap) {
  GgufBytes bytes(3, 0);
  bytes.tensor("c", {8}, tensor_f32, 64).tensor("a", {8}, tensor_f32, 0).tensor("b", {9}, tensor_f32, 32);
  refuse(bytes.pad().data(256), "tensors \"b\" and \"c\" overlap at offset 64");
  GgufBytes same(2, 0);
  same.tensor("a", {8}, tensor_f32, 32).tensor("b", {8}, tensor_f32, 32);
  refuse(same.pad().data(256), "overlap at offset 32");
}

TEST_F(Gguf, RowsThatAreNotWholeBlocks) {
  refuse(GgufBytes(1, 0).tensor("t", {48, 2}, tensor_q8_0, 0).pad().data(256),
         "tensor \"t\": has rows of 48 elements, which are not whole blocks of 32, as Q8_0 has them");
}

TEST_F(Gguf, TypesThatQuireDoesNotComputeWith) {
  refuse(GgufBytes(1, 0).tensor("t.weight", {256}, tensor_iq2_xxs, 0).pad().data(256),
         "tensor \"t.weight\": has type IQ2_XXS, which quire does not compute with; it does with F32, F16, BF16");
  refuse(GgufBytes(1, 0).tensor("t", {256}, 26, 0).pad().data(256), "has type I32, which");
  refuse(GgufBytes(1, 0).tensor("t", {256}, 39, 0).pad().data(256), "has type MXFP4, which");
  refuse(GgufBytes(1, 0).tensor("t", {256}, 43, 0).pad().data(256), "has type 43, which quire does not know");
  refuse(GgufBytes(1, 0).tensor("t", {256}, 0xffffffff, 0).pad().data(256), "has type 4294967295");
}

TEST_F(Gguf, NamesFromTheFileCannotBreakTheLine) {
  refuse(GgufBytes(0, 1).key("two\nlines\x1b[2J", 99, 0), "key \"two\\nlines\\x1b[2J\": has type 99");
}

TEST_F(Gguf, CutOffAtEveryByte) {
  const std::string whole = small_file().str();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string path = folder_.put("cut.gguf", whole.substr(0, length));
    EXPECT_THROW(GgufFile{path}, CheckError) << "at byte " << length << " of " << whole.size();
  }
  EXPECT_EQ(read_all(open(whole)), 12 * 'm' + 34 * 'v');
}

// Whatever bytes change, the file opens and can be read, or is refused.
TEST_F(Gguf, RandomChanges) {
  const std::string whole = small_file().str();
  std::mt19937 random(11);
  int opened = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string changed = whole;
    for (uint32_t count = random() % 4 + 1; count > 0; --count) {
      constexpr char kTelling[] = {'\x00', '\x01', '\x7f', '\x80', '\xff', '\x09', '\x08'};
      const char byte = random() % 2 ? static_cast<char>(random()) : kTelling[random() % std::size(kTelling)];
      changed[random() % changed.size()] = byte;
    }
    try {
      if (read_all(open(changed)) == 12 * 'm' + 34 * 'v') ++opened;  // others have changed tensors
    } catch (const CheckError& error) {
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace quire
