#include "base/torch_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/testing/expect_refused.h"
#include "base/testing/torch_file_bytes.h"

namespace quire {
namespace {

using Dims = std::vector<int64_t>;

std::vector<NamedTensor> read_torch(const std::string& bytes) {
  return read_torch_file(std::as_bytes(std::span(bytes)));
}

std::string text_in(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The file of a pickle and one storage, "archive/data/0", of 24 bytes.
std::string file_of(const PickleBytes& pickle, const std::string& order = "little") {
  ZipBytes zip;
  zip.entry("archive/data.pkl", pickle.str()).entry("archive/byteorder", order);
  return zip.entry("archive/data/0", "abcdefghijklmnopqrstuvwx").entry("archive/version", "3\n").str();
}

void refuse_pickle(const PickleBytes& pickle, const std::string& part) {
  const std::string bytes = file_of(pickle);
  expect_refused([&] { read_torch(bytes); }, part);
}

// A dict that has one item, "t".
PickleBytes item_begun() { return PickleBytes().raw("}").remember().text("t"); }
PickleBytes tensor_begun() { return item_begun().begin_tensor().storage("FloatStorage", "0", 6); }

PickleBytes one_tensor(const Dims& dims, const Dims& strides, int64_t offset = 0) {
  return tensor_begun().end_tensor(offset, dims, strides).raw("s.");
}

// --- what files say

TEST(TorchFile, AModulesStateDict) {
  for (const char* root : {"archive", "pytorch_model", "a/b"}) {
    TorchFileBytes file;
    file.tensor("fc.weight", "F16", Dims{2, 3}, "aabbccddeeff").tensor("d2t", "I64", Dims{1}, "12345678");
    file.tensor("t2d", "BOOL", Dims{2, 1, 1, 2}, "0110").tensor("n", "F32", Dims{}, "1234");
    const std::string bytes = file.str(root);
    const std::vector<NamedTensor> tensors = read_torch(bytes);
    ASSERT_EQ(tensors.size(), 4u);
    EXPECT_EQ(tensors[0].name, "fc.weight");
    EXPECT_EQ(tensors[0].dtype, "F16");
    EXPECT_EQ(tensors[0].dims, (Dims{2, 3}));
    EXPECT_EQ(text_in(tensors[0].data), "aabbccddeeff");
    EXPECT_EQ(tensors[1].dtype, "I64");
    EXPECT_EQ(tensors[2].dims, (Dims{2, 1, 1, 2}));
    EXPECT_EQ(text_in(tensors[2].data), "0110");
    EXPECT_TRUE(tensors[3].dims.empty());
  }
}

TEST(TorchFile, EveryTypeOfStorage) {
  for (const auto& [dtype, bytes] :
       {std::pair{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"I32", 4}, {"U8", 1}, {"BOOL", 1}}) {
    TorchFileBytes file;
    const std::string saved = file.tensor("t", dtype, Dims{3}, std::string(size_t{3} * bytes, 'x')).str();
    EXPECT_EQ(read_torch(saved)[0].dtype, dtype);
    EXPECT_EQ(read_torch(saved)[0].data.size(), size_t{3} * bytes);
  }
}

// More of them than one byte counts, so places in the memo and the number of elements take their longer forms.
TEST(TorchFile, ManyTensors) {
  TorchFileBytes file;
  const std::string data(70'000 * 4, 'x');
  for (int i = 0; i < 100; ++i)
    file.tensor(std::to_string(i), "F32", Dims{i == 50 ? 70'000 : 1},
                std::string_view(data).substr(0, i == 50 ? data.size() : 4));
  const std::string bytes = file.str();
  const std::vector<NamedTensor> tensors = read_torch(bytes);
  ASSERT_EQ(tensors.size(), 100u);
  EXPECT_EQ(tensors[50].data.size(), data.size());
  EXPECT_EQ(tensors[99].name, "99");
}

TEST(TorchFile, APartOfAStorage) {
  const std::string bytes = file_of(one_tensor({1, 2}, {77, 1}, 3));  // nothing is a row further on
  EXPECT_EQ(text_in(read_torch(bytes)[0].data), "mnopqrst");
}

TEST(TorchFile, AParameterIsItsTensor) {
  PickleBytes pickle = item_begun().global("torch._utils", "_rebuild_parameter").raw("(").begin_tensor();
  pickle.storage("HalfStorage", "0", 12).end_tensor(0, Dims{12}, Dims{1}).raw("\x88").ordered_dict().raw("tRs.");
  const std::string bytes = file_of(pickle);
  EXPECT_EQ(read_torch(bytes)[0].dims, (Dims{12}));
}

TEST(TorchFile, NoTensorsAtAll) {
  EXPECT_TRUE(read_torch(file_of(PickleBytes().raw("}."))).empty());
  EXPECT_TRUE(read_torch(file_of(PickleBytes().ordered_dict().raw("."))).empty());
}

// --- containers that are not what they say

TEST(TorchFile, FilesThatAreNone) {
  expect_refused([] { read_torch(""); }, "has 0 bytes, too few for a zip file");
  expect_refused([] { read_torch("\x80\x02\x8a\x0a"); }, "before version 1.6");
  expect_refused([] { read_torch(std::string(100, 'x')); }, "has no directory at its end");
  expect_refused([] { read_torch(ZipBytes().entry("data.pkl", "").str()); }, "has no entry NAME/data.pkl");
  expect_refused([] { read_torch(ZipBytes().entry("a/data.pkl", "").entry("b/data.pkl", "").str()); },
                 "has two pickles, \"a/data.pkl\" and \"b/data.pkl\"");
  expect_refused([] { read_torch(ZipBytes().entry("a/data.pkl", "").str()); },
                 "a/data.pkl: byte 0: an instruction of 1 bytes at byte 0 goes past the end");
}

TEST(TorchFile, NumbersInTheOtherOrder) {
  expect_refused([] { read_torch(file_of(one_tensor({6}, {1}), "big")); }, "byte order \"big\", not little");
  expect_refused([] { read_torch(file_of(one_tensor({6}, {1}), "")); }, "byte order \"\", not little");
  ZipBytes old;  // says nothing of it
  const std::string bytes =
      old.entry("x/data.pkl", one_tensor({6}, {1}).str()).entry("x/data/0", std::string(24, 'x')).str();
  EXPECT_EQ(read_torch(bytes).size(), 1u);
}

TEST(TorchFile, StoragesThatAreNotTrue) {
  const auto of = [](const std::string& type, const std::string& key, int64_t elements) {
    return item_begun().begin_tensor().storage(type, key, elements).end_tensor(0, Dims{1}, Dims{1}).raw("s.");
  };
  refuse_pickle(of("FloatStorage", "1", 6),
                "tensor \"t\": is in the storage \"archive/data/1\", which the file does not have");
  refuse_pickle(of("FloatStorage", "../version", 6), "which the file does not have");
  refuse_pickle(of("FloatStorage", "0", 5), "of 5 elements of F32, which has 24 bytes");
  refuse_pickle(of("LongStorage", "0", 6), "of 6 elements of I64, which has 24 bytes");
  refuse_pickle(of("FloatStorage", "0", -6), "of -6 elements");
  refuse_pickle(of("FloatStorage", "0", std::numeric_limits<int64_t>::max()), "of 9223372036854775807 elements");
  refuse_pickle(of("DoubleStorage", "0", 3), "names \"torch.DoubleStorage\", which is not read");
  refuse_pickle(of("OrderedDict", "0", 3), "names \"torch.OrderedDict\"");
  refuse_pickle(item_begun()
                    .raw("(")
                    .text("storage")
                    .global("collections", "OrderedDict")
                    .text("0")
                    .text("cpu")
                    .integer(1)
                    .raw("tQs."),
                "has storage of the type OrderedDict");
  refuse_pickle(
      item_begun().raw("(").text("module").global("torch", "IntStorage").text("0").text("cpu").integer(1).raw("tQs."),
      "asks for \"module\", which is no storage");
  refuse_pickle(item_begun().raw("(").text("storage").raw("tQs."), "names a storage by 1 values, not by 5");
  refuse_pickle(item_begun().raw("(NNNNNtQs."), "names a storage by None where a text must be");
  refuse_pickle(item_begun().text("0").raw("Qs."), "what names a storage is a text, not a tuple");
}

TEST(TorchFile, TensorsThatAreNotContiguous) {
  refuse_pickle(one_tensor({2, 3}, {1, 2}), "tensor \"t\": is not contiguous: dimension 1 has the stride 2, not 1");
  refuse_pickle(one_tensor({2, 3}, {0, 1}), "is not contiguous: dimension 0 has the stride 0, not 3");
  refuse_pickle(one_tensor({2, 3}, {-3, 1}), "is not contiguous: dimension 0 has the stride -3, not 3");
  refuse_pickle(one_tensor({2, 3}, {3}), "has 2 dimensions and 1 strides");
}

TEST(TorchFile, TensorsOutsideTheirStorage) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  refuse_pickle(one_tensor({7}, {1}), "tensor \"t\": has 7 elements from element 0 of its storage on, which has 6");
  refuse_pickle(one_tensor({6}, {1}, 1), "has 6 elements from element 1 of its storage on, which has 6");
  refuse_pickle(one_tensor({1}, {1}, -1), "from element -1");
  refuse_pickle(one_tensor({1}, {1}, kMost), "from element 9223372036854775807");
  refuse_pickle(one_tensor({kMost}, {1}), "has 9223372036854775807 elements");
  refuse_pickle(one_tensor({kMost, 2}, {2, 1}), "has more elements than 64 bits count");
  refuse_pickle(one_tensor({0}, {1}), "has a dimension of 0");
  refuse_pickle(one_tensor({-1}, {1}), "has a dimension of -1");
  refuse_pickle(one_tensor(Dims(9, 1), Dims(9, 1)), "makes a tensor of 9 dimensions, more than 8");
}

// --- pickles that are not what they say

TEST(TorchFile, NothingIsCalledButWhatAStateDictNeeds) {
  for (const auto& [module, name] : {std::pair{"posix", "system"},
                                     {"builtins", "eval"},
                                     {"__builtin__", "exec"},
                                     {"torch", "load"},
                                     {"torch._utils", "_rebuild_sparse_tensor"},
                                     {"torch._utils", "_rebuild_tensor_v3"},
                                     {"torch.storage", "UntypedStorage"},
                                     {"numpy", "core"}})
    refuse_pickle(item_begun().global(module, name).raw("(").text("touch x").raw("tRs."),
                  cat("names \"", module, ".", name, "\", which is not read"));
  refuse_pickle(item_begun().global("torch", "FloatStorage").raw(")Rs."), "calls FloatStorage");
  refuse_pickle(item_begun().text("os.system").raw(")Rs."), "what is called is a text, not a name");
  refuse_pickle(item_begun().global("collections", "OrderedDict").raw("}Rs."),
                "what a call is given is a dict, not a tuple");
  refuse_pickle(item_begun().global("collections", "OrderedDict").raw("N\x85Rs."), "makes an OrderedDict of 1 values");
  refuse_pickle(item_begun().global("torch._utils", "_rebuild_parameter").raw("N\x88}\x87Rs."), "makes a parameter of");
  refuse_pickle(PickleBytes().raw("c" + std::string(200, 'x') + "\nx\n."), "has a name that does not end");
  refuse_pickle(PickleBytes().raw("cposix"), "has a name that does not end");
}

TEST(TorchFile, CallsOfTheWrongThings) {
  refuse_pickle(item_begun().begin_tensor().raw("tRs."), "makes a tensor of 0 values, not of 6");
  refuse_pickle(item_begun().begin_tensor().raw("NK\x01))\x89}tRs."), "makes a tensor of None where a storage must be");
  refuse_pickle(tensor_begun().integer(0).raw("N)\x89}tRs."), "makes a tensor of None where a tuple must be");
  refuse_pickle(tensor_begun().integer(0).text("1").raw("\x85").text("1").raw("\x85\x89}tRs."),
                "whose shape or stride has a text where a whole number must be");
  refuse_pickle(tensor_begun().integer(0).integers(Dims{6}).integers(Dims{1}).raw("\x89}NtRs."),
                "of 7 values, not of 6");
}

TEST(TorchFile, DictsOfOtherThings) {
  refuse_pickle(item_begun().integer(3).raw("s."), "tensor \"t\": is a whole number, not a tensor");
  refuse_pickle(item_begun().raw("}s."), "tensor \"t\": is a dict, not a tensor");
  refuse_pickle(PickleBytes().raw("N."), "what it has is None, not a dict");
  refuse_pickle(PickleBytes().raw("}N."), "ends with 2 values on its stack");
  refuse_pickle(PickleBytes().raw("}(."), "ends with 1 values on its stack");
  refuse_pickle(PickleBytes().raw("."), "ends with 0 values on its stack");
  refuse_pickle(PickleBytes().raw("}.N"), "has 1 bytes behind its end");
  refuse_pickle(PickleBytes().raw("}K\x01Ns."), "has a key that is a whole number, not a text");
  refuse_pickle(PickleBytes().raw("NNNs."), "sets items of None, not of a dict");
  refuse_pickle(PickleBytes().raw("}NNb."), "what a dict has beside its items is None, not a dict");
  refuse_pickle(PickleBytes().raw("N}b."), "what is told more of is None, not a dict");
  PickleBytes twice = tensor_begun().end_tensor(0, Dims{6}, Dims{1}).raw("s").text("t").raw("Ns.");
  refuse_pickle(twice, "tensor \"t\": is there twice");
}

TEST(TorchFile, InstructionsThatGoWrong) {
  refuse_pickle(PickleBytes().raw("}i."), "byte 3: has the instruction 105, which no state dict needs");
  refuse_pickle(PickleBytes().raw("\x80\x02."), "has the instruction 128");
  refuse_pickle(PickleBytes().raw("]."), "has the instruction 93");
  refuse_pickle(PickleBytes().raw("G12345678."), "has the instruction 71");
  for (const char* alone : {"R", "b", "Q", "q\x01", "r\x01\x01\x01\x01"})
    refuse_pickle(PickleBytes().raw(alone), "takes a value");
  for (const char* alone : {"t", "u"})
    refuse_pickle(PickleBytes().raw(alone), "goes back to a mark where there is none");
  refuse_pickle(PickleBytes().raw("}(q\x01"),
                "takes a value where there is none");  // what lies before a mark is not taken
  refuse_pickle(PickleBytes().raw("}(R"), "takes a value where there is none");
  refuse_pickle(PickleBytes().raw("N\x86"), "makes a tuple of 2 of fewer values");
  refuse_pickle(PickleBytes().raw("NN(N\x87"), "makes a tuple of 3 of fewer values");
  refuse_pickle(PickleBytes().raw("}Ns"), "sets items of no dict");
  refuse_pickle(PickleBytes().raw("s"), "sets an item where there is none");
  refuse_pickle(PickleBytes().raw("}(Nu"), "has a key and no value");
  refuse_pickle(PickleBytes().raw("(u"), "sets items of no dict");
  refuse_pickle(PickleBytes().raw("h\x05"), "asks for place 5 of its memo, where nothing was put");
  refuse_pickle(PickleBytes().raw("Nq\x05h\x04"), "asks for place 4 of its memo");
  refuse_pickle(PickleBytes().raw("Nr\xff\xff\xff\xff"), "at place 4294967295, and there are 1000000");
  refuse_pickle(PickleBytes().raw("j\xff\xff\xff\xff"), "asks for place 4294967295");
  refuse_pickle(PickleBytes().raw("X\xff\xff\xff\xff"), "a text of 4294967295 bytes");
  refuse_pickle(PickleBytes().raw("\x8a\x09"
                                  "123456789"),
                "has a number of 9 bytes, more than 8");
  refuse_pickle(PickleBytes().raw("}"), "an instruction of 1 bytes at byte 3 goes past the end");
  ZipBytes zip;
  expect_refused([&] { read_torch(zip.entry("a/data.pkl", "\x80\x04}.").str()); }, "is of protocol 4");
  ZipBytes other;
  expect_refused([&] { read_torch(other.entry("a/data.pkl", "}.").str()); }, "does not begin as a pickle does");
}

TEST(TorchFile, NumbersOfAnyLength) {
  const auto with_offset = [](const std::string& number) {
    return tensor_begun().raw(number).integers(Dims{1}).integers(Dims{1}).raw("\x89}tRs.");
  };
  const std::string zero = file_of(with_offset(std::string("\x8a\x00", 2)));
  EXPECT_EQ(text_in(read_torch(zero)[0].data), "abcd");
  const std::string two = file_of(with_offset(std::string("\x8a\x02\x02\x00", 4)));
  EXPECT_EQ(text_in(read_torch(two)[0].data), "ijkl");
  refuse_pickle(with_offset("\x8a\x01\xff"), "from element -1");
  refuse_pickle(with_offset(std::string("\x8a\x03\x00\x00\x80", 5)), "from element -8388608");
  refuse_pickle(with_offset("J\xfe\xff\xff\xff"), "from element -2");
}

// --- pickles that would take all time or memory of a reader that believes them

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST(TorchFile, NestingIsNoRecursion) {
  refuse_pickle(PickleBytes().raw(std::string(33, '(')), "nests deeper than 32");
  refuse_pickle(item_begun().raw("N" + std::string(900'000, '\x85') + "s."), "tensor \"t\": is a tuple, not a tensor");
  // Each holds the one before twice: 2^1000 values if all were visited.
  refuse_pickle(item_begun().raw(")" + repeated("q\x07h\x07\x86", 1000) + "s."), "is a tuple, not a tensor");
  // A dict that is its own item.
  refuse_pickle(item_begun().raw(std::string("h\x00s.", 4)), "tensor \"t\": is a dict, not a tensor");
}

TEST(TorchFile, SizesAreLimited) {
  refuse_pickle(PickleBytes().raw(std::string(1'000'001, 'N')), "builds more than 1000000 values");
  refuse_pickle(PickleBytes().raw(")q").raw(std::string(1, '\0')).raw(repeated(std::string("h\0", 2), 1'000'001)),
                "has more than 1000000 values on its stack");
  const std::string huge = ZipBytes().entry("a/data.pkl", std::string(16'000'001, 'N')).str();
  expect_refused([&] { read_torch(huge); }, "has 16000001 bytes, more than 16000000");
}

// A shape of very many numbers is looked at once, not in each of very many calls.
TEST(TorchFile, ShapesAreShort) {
  std::string numbers(500'000, 'N');
  refuse_pickle(tensor_begun().integer(0).raw("(" + numbers + "t").integers(Dims{1}).raw("\x89}tRs."),
                "makes a tensor of 500000 dimensions, more than 8");
}

// Whatever bytes change, it is read or refused, and what is read lies in the file.
TEST(TorchFile, AnyDamage) {
  TorchFileBytes file;
  file.tensor("fc.weight", "F16", Dims{2, 3}, "aabbccddeeff").tensor("d2t", "I64", Dims{1}, "12345678");
  const std::string good = file.str();
  const size_t pickle = 64, pickle_bytes = good.find("_metadata") + 60 - pickle;
  std::mt19937_64 random(1);
  int survived = 0;
  for (int i = 0; i < 50'000; ++i) {
    std::string bytes = good;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes)
      bytes[pickle + random() % pickle_bytes] = static_cast<char>(random());
    try {
      for (const NamedTensor& tensor : read_torch(bytes)) {
        const auto* begin = reinterpret_cast<const char*>(tensor.data.data());
        EXPECT_GE(begin, bytes.data());
        EXPECT_LE(begin + tensor.data.size(), bytes.data() + bytes.size());
        ++survived;
      }
    } catch (const CheckError&) {
    }
  }
  EXPECT_GT(survived, 0);
}

}  // namespace
}  // namespace quire
