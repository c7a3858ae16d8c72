#include "base/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"

namespace quire {
namespace {

// A file of this header and this tensor data; `claimed` is what the file says about the length of its header.
std::string safetensors_bytes(std::string_view header, std::string_view data, uint64_t claimed) {
  char length[sizeof(claimed)];
  std::memcpy(length, &claimed, sizeof(claimed));
  return std::string(length, sizeof(length)).append(header).append(data);
}

std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return safetensors_bytes(header, data, header.size());
}

const std::string kTwoTensors = safetensors_bytes(R"({"__metadata__":{"format":"pt"},
  "b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},
  "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}  )",
                                                  "aaaaaaaaaaaabbbbbbbb");

std::string one_tensor(const std::string& name) {
  return safetensors_bytes("{\"" + name + R"(":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "1234");
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class Safetensors : public testing::Test {
 protected:
  SafetensorsFolder open(const std::string& bytes) const {
    folder_.put("model.safetensors", bytes);
    return SafetensorsFolder(folder_.path());
  }
  void refuse(const std::string& bytes, const std::string& part) const {
    expect_refused([&] { open(bytes); }, part);
    expect_refused([&] { open(bytes); }, folder_.path("model.safetensors") + ": ");
  }
  // The header of one tensor "t" with these facts and 8 bytes of data.
  void refuse_tensor(const std::string& facts, const std::string& part) const {
    refuse(safetensors_bytes("{\"t\":" + facts + "}", "12345678"), part);
  }
  void refuse_index(const std::string& index, const std::string& part) const {
    folder_.put("model.safetensors.index.json", index);
    expect_refused([&] { SafetensorsFolder folder(folder_.path()); }, part);
  }

  TemporaryFolder folder_;
};

// --- what a folder says

TEST_F(Safetensors, OneFile) {
  const SafetensorsFolder folder = open(kTwoTensors);
  ASSERT_EQ(folder.tensors().size(), 2u);
  const FileTensor* a = folder.tensor("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, BlockType::bf16);
  EXPECT_EQ(a->dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(text_of(a->data), "aaaaaaaaaaaa");
  EXPECT_EQ(folder.tensor("b")->type, BlockType::f32);
  EXPECT_EQ(text_of(folder.tensor("b")->data), "bbbbbbbb");
  EXPECT_EQ(folder.tensor("c"), nullptr);
  EXPECT_EQ(folder.tensor("__metadata__"), nullptr);
  EXPECT_EQ(folder.files().size(), 1u);
}

TEST_F(Safetensors, Shards) {
  folder_.put("model-1.safetensors", kTwoTensors);
  folder_.put("model-2.safetensors", one_tensor("0"));
  folder_.put("model.safetensors.index.json",
              R"({"metadata":{"total_size":24,"deep":[[{}]]},"weight_map":{"a":"model-1.safetensors",)"
              R"("b":"model-1.safetensors","0":"model-2.safetensors"}})");
  const SafetensorsFolder folder(folder_.path());
  EXPECT_EQ(folder.files().size(), 2u);
  ASSERT_EQ(folder.tensors().size(), 3u);
  EXPECT_EQ(folder.tensors()[0].name, "0");
  EXPECT_EQ(text_of(folder.tensor("0")->data), "1234");
  EXPECT_EQ(text_of(folder.tensor("b")->data), "bbbbbbbb");
}

TEST_F(Safetensors, ASingleNumberHasNoDimensions) {
  const SafetensorsFolder folder =
      open(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234"));
  EXPECT_TRUE(folder.tensor("t")->dims.empty());
  EXPECT_EQ(folder.tensor("t")->data.size(), 4u);
}

TEST_F(Safetensors, NoTensorsAtAll) { EXPECT_TRUE(open(safetensors_bytes("{}", "")).tensors().empty()); }

TEST_F(Safetensors, ViewsStayGoodWhenTheFolderMoves) {
  SafetensorsFolder first = open(kTwoTensors);
  const SafetensorsFolder second(std::move(first));
  EXPECT_EQ(text_of(second.tensor("a")->data), "aaaaaaaaaaaa");
}

// --- headers that are not what they say

TEST_F(Safetensors, FoldersWithoutWeights) {
  expect_refused([&] { SafetensorsFolder folder(folder_.path("none")); }, "none: is not a folder");
  expect_refused([&] { SafetensorsFolder folder(folder_.path()); },
                 "has neither model.safetensors nor model.safetensors.index.json");
  std::filesystem::create_directory(folder_.path("model.safetensors"));
  expect_refused([&] { SafetensorsFolder folder(folder_.path()); }, "is a folder, not a file");
}

TEST_F(Safetensors, LengthsOfHeaders) {
  refuse("", "is empty");
  refuse("1234567", "the length of the header of 8 bytes at byte 0 goes past the end");
  refuse(safetensors_bytes("{}", "", 3), "the header of 3 bytes at byte 8 goes past the end, 2 are left");
  refuse(safetensors_bytes("{}", "", 100'000'000), "goes past the end");
  refuse(safetensors_bytes("{}", "", 100'000'001), "has a header of 100000001 bytes, more than 100000000");
  refuse(safetensors_bytes("{}", "", std::numeric_limits<uint64_t>::max()),
         "has a header of 18446744073709551615 bytes");
  refuse(safetensors_bytes("{}", "", 0), "begins with \"\"");
  refuse(safetensors_bytes(" {}", ""), "begins with \" \"");
}

TEST_F(Safetensors, HeadersThatAreNoHeader) {
  refuse(safetensors_bytes("{", ""), "header: not JSON");
  refuse(safetensors_bytes("{\"t\":1}", ""), "tensor \"t\": is not an object but number");
  refuse(safetensors_bytes(R"({"__metadata__":1})", ""), "__metadata__ is not an object but number");
  refuse(safetensors_bytes(R"({"__metadata__":{"a":1}})", ""), "__metadata__: \"a\" is not a string but number");
  refuse(safetensors_bytes("{\"t\":" + std::string(1'000'000, '['), ""), "nested deeper than 3");
  refuse(safetensors_bytes(R"({"t":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "12345678"), "nested deeper");
}

std::string object_of_keys(int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  return text + "}";
}

// A key takes a hundred times its own bytes in memory, a value ten times.
TEST_F(Safetensors, HeadersThatTakeMuchMoreMemoryThanTheirBytes) {
  const auto refuse_header = [](const std::string& header, const std::string& part) {
    const std::string file = safetensors_bytes(header, "");
    expect_refused([&] { read_safetensors(std::as_bytes(std::span(file))); }, part);
  };
  refuse_header(object_of_keys(200'001), "header: an object of the JSON has more than 200000 keys");
  std::string many_values = R"({"t":{"shape":[0)";
  for (int i = 0; i < 3'000'000; ++i) many_values += ",0";
  refuse_header(many_values + "]}}", "header: the JSON has more than 3000000 values");
}

TEST_F(Safetensors, IndicesOfTooManyTensors) {
  refuse_index(R"({"weight_map":)" + object_of_keys(500'001) + "}",
               "model.safetensors.index.json: an object of the JSON has more than 500000 keys");
}

TEST_F(Safetensors, NamesThatOccurTwice) {
  const std::string facts = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  refuse(safetensors_bytes("{\"t\":" + facts + ",\"t\":" + facts + "}", "1234"), "the key \"t\" occurs twice");
  refuse_tensor(R"({"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]})", "the key \"dtype\" occurs twice");
}

TEST_F(Safetensors, Types) {
  refuse_tensor(
      R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})",
      "tensor \"t\": has dtype \"I64\", which quire does not compute with; it does with F32, F16, BF16, F8_E4M3");
  refuse_tensor(R"({"dtype":"Q4_1","shape":[1],"data_offsets":[0,8]})", "has dtype \"Q4_1\"");
  refuse_tensor(R"({"dtype":3,"shape":[1],"data_offsets":[0,8]})", "dtype is not a string but number");
  refuse_tensor(R"({"shape":[1],"data_offsets":[0,8]})", "tensor \"t\": has no dtype");
}

// What is no weight: beside them, for who asks for it.
TEST(SafetensorsContents, HasMetadataAndIntegers) {
  const std::string file = safetensors_bytes(R"({"__metadata__":{"format":"some","version":"1"},
    "ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},
    "flags":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]},
    "blocks":{"dtype":"U8","shape":[1,2],"data_offsets":[19,21]},
    "norm":{"dtype":"F16","shape":[1],"data_offsets":[21,23]}})",
                                             "iiiiiiiiiiiiiiiifffbbnn");
  const SafetensorsContents contents = read_safetensors_contents(std::as_bytes(std::span(file)));
  EXPECT_EQ(contents.metadata, (std::map<std::string, std::string>{{"format", "some"}, {"version", "1"}}));
  ASSERT_EQ(contents.tensors.size(), 4u);
  EXPECT_EQ(contents.tensors[0].dtype, "I64");
  EXPECT_EQ(contents.tensors[1].name, "flags");
  EXPECT_EQ(contents.tensors[2].dims, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(text_of(contents.tensors[3].data), "nn");
  expect_refused([&] { read_safetensors(std::as_bytes(std::span(file))); }, "has dtype");
}

TEST(SafetensorsContents, RefusesWhatItsBytesDoNotHold) {
  const auto refuse = [](const std::string& facts, const std::string& part) {
    const std::string file = safetensors_bytes("{\"t\":" + facts + "}", "12345678");
    expect_refused([&] { read_safetensors_contents(std::as_bytes(std::span(file))); }, part);
  };
  refuse(R"({"dtype":"I64","shape":[2],"data_offsets":[0,8]})", "its shape and type say 16");
  refuse(R"({"dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,0]})", "more bytes than 64 bits count");
  refuse(R"({"dtype":"I16","shape":[4],"data_offsets":[0,8]})", "it does with F32, F16, BF16, F8_E4M3, I64, I32, U8");
}

TEST_F(Safetensors, Shapes) {
  const auto shaped = [](const std::string& shape) {
    return R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]})";
  };
  refuse_tensor(shaped("[3]"), "tensor \"t\": has 8 bytes in the file, its shape and type say 12");
  refuse_tensor(shaped("[0]"), "has a dimension of 0");
  refuse_tensor(shaped("[-2]"), "shape has \"-2\", not a whole number");
  refuse_tensor(shaped("[2.0]"), "shape has \"2.0\", not a whole number");
  refuse_tensor(shaped("[1e0]"), "not a whole number");
  refuse_tensor(shaped("[18446744073709551618]"), "not a whole number");
  refuse_tensor(shaped("[18446744073709551615]"), "has more elements than 64 bits count");
  refuse_tensor(shaped("[4294967296,4294967296,2]"), "has more elements than 64 bits count");
  refuse_tensor(shaped("[4611686018427387906]"), "more bytes than 64 bits count");  // times 4 wraps to 8
  refuse_tensor(shaped("[1,1,1,1,1,1,1,1,2]"), "has 9 dimensions, more than 8");
  refuse_tensor(shaped("\"2\""), "shape is not an array but string");
  refuse_tensor(R"({"dtype":"F32","data_offsets":[0,8]})", "has no shape");
}

TEST_F(Safetensors, Offsets) {
  const auto placed = [](const std::string& offsets) {
    return R"({"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}";
  };
  refuse_tensor(placed("[8,0]"), "begins at 8 and ends before, at 0");
  refuse_tensor(placed("[-8,0]"), "data_offsets has \"-8\", not a whole number");
  refuse_tensor(placed("[0.0,8]"), "not a whole number");
  refuse_tensor(placed("[0]"), "data_offsets is not an array of two");
  refuse_tensor(placed("[0,8,8]"), "data_offsets is not an array of two");
  refuse_tensor(placed("8"), "data_offsets is not an array of two");
  refuse_tensor(placed("[18446744073709551608,18446744073709551616]"), "not a whole number");
  refuse_tensor(placed("[18446744073709551607,18446744073709551615]"), "leave a gap");
  refuse_tensor(R"({"dtype":"F32","shape":[2]})", "has no data_offsets");
}

std::string two_at(const std::string& first, const std::string& second) {
  return R"({"a":{"dtype":"F16","shape":[2],"data_offsets":)" + first +
         R"(},"b":{"dtype":"F16","shape":[2],"data_offsets":)" + second + "}}";
}

TEST_F(Safetensors, PlacesThatDoNotFillTheData) {
  open(safetensors_bytes(two_at("[4,8]", "[0,4]"), "12345678"));
  refuse(safetensors_bytes(two_at("[0,4]", "[2,6]"), "123456"),
         "tensor \"b\" begins at 2, the one before it ends at 4: they overlap");
  refuse(safetensors_bytes(two_at("[0,4]", "[0,4]"), "1234"), "they overlap");
  refuse(safetensors_bytes(two_at("[0,4]", "[6,10]"), "1234567890"), "they leave a gap");
  refuse(safetensors_bytes(two_at("[2,6]", "[6,10]"), "1234567890"), "they leave a gap");
  refuse(safetensors_bytes(two_at("[0,4]", "[4,8]"), "1234567"), "the tensors end at 8, the file has 7 bytes");
  refuse(safetensors_bytes(two_at("[0,4]", "[4,8]"), "123456789"), "the tensors end at 8, the file has 9 bytes");
}

// --- indices that are not what they say

TEST_F(Safetensors, IndicesThatAreNoIndex) {
  refuse_index("[]", "model.safetensors.index.json: the JSON is not an object");
  refuse_index("{}", "has no object weight_map");
  refuse_index(R"({"weight_map":3})", "has no object weight_map");
  refuse_index(R"({"weight_map":{}})", "has an empty weight_map");
  refuse_index(R"({"weight_map":{"a":3}})", "weight_map: \"a\" is not a file name but number");
  refuse_index(R"({"weight_map":{"a":"x","a":"x"}})", "the key \"a\" occurs twice");
  refuse_index("{\"metadata\":" + std::string(100'000, '['), "nested deeper");
}

TEST_F(Safetensors, ShardsOutsideTheFolder) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".", "", "a..b"})
    refuse_index(R"({"weight_map":{"a":")" + std::string(name) + "\"}}", "which is not a plain name");
  refuse_index(R"({"weight_map":{"a":"x\u0000y"}})", "which is not a plain name");
}

TEST_F(Safetensors, ShardsThatAreMissingOrHoldSomethingElse) {
  refuse_index(R"({"weight_map":{"a":"one.safetensors"}})", "one.safetensors: No such file");
  folder_.put("one.safetensors", one_tensor("a"));
  folder_.put("two.safetensors", one_tensor("b"));
  refuse_index(R"({"weight_map":{"a":"one.safetensors","c":"one.safetensors"}})",
               "says that \"c\" is in \"one.safetensors\", where it is not");
  refuse_index(R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})",
               "says that \"a\" is in \"two.safetensors\", where it is not");
  folder_.put("two.safetensors", one_tensor("a"));
  refuse_index(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})", "tensor \"a\" is in two files");
}

// --- broken files

TEST_F(Safetensors, CutOffAtEveryByte) {
  for (size_t length = 0; length < kTwoTensors.size(); ++length)
    EXPECT_THROW(open(kTwoTensors.substr(0, length)), CheckError) << "at byte " << length;
}

TEST_F(Safetensors, RandomChanges) {
  std::mt19937 random(5);
  int opened = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string changed = kTwoTensors;
    for (uint32_t count = random() % 3 + 1; count > 0; --count)
      changed[random() % changed.size()] =
          random() % 2 ? static_cast<char>(random()) : "0129[]{},:\"-.e"[random() % 14];
    try {
      const SafetensorsFolder folder = open(changed);
      size_t bytes = 0;
      for (const FileTensor& tensor : folder.tensors()) bytes += text_of(tensor.data).size();
      EXPECT_EQ(bytes, 20u);
      ++opened;
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
