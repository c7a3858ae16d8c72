// A GGUF file: metadata and tensors, read in place from the mapped file. Versions 2 and 3, little-endian.
//
// Nothing in the file is trusted. Every count, length, offset and size is checked with arithmetic that cannot wrap,
// against what is left of the file, before anything is read, multiplied or allocated; strings and arrays are views into
// the mapping, so a count costs nothing until its elements have been seen to exist.
//
// Errors   CheckError, one line: "PATH: what is wrong", with the key or tensor and the offending value. A key or
//          tensor name that occurs twice, an alignment that is no power of two, a tensor that overlaps another or the
//          end of the file, a type that quire does not compute with: all are refused when the file is opened.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/file_tensor.h"
#include "base/mapped_file.h"

namespace quire {

class GgufFile {
 public:
  // A scalar or string of any of the file's types, widened; or an array, still in the file.
  struct Array {
    uint32_t type;  // of its elements, as the file numbers them; never an array
    uint64_t count;
    std::span<const std::byte> bytes;  // checked: holds exactly count elements
  };
  using Value = std::variant<bool, int64_t, uint64_t, double, std::string_view, Array>;
  // For people: long strings and arrays shortened. A friend, so that plain numbers, which convert to a Value, do not
  // find it.
  friend std::string to_string(const Value& value);

  explicit GgufFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  uint32_t version() const { return version_; }
  const MappedFile& file() const { return file_; }

  // Metadata in the file's order. The getters throw CheckError naming the key when it has another type or, those
  // without a default, when it is missing.
  const std::vector<std::pair<std::string_view, Value>>& metadata() const { return metadata_; }
  const Value* find(std::string_view key) const;  // null: not there
  bool has(std::string_view key) const { return find(key) != nullptr; }
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view otherwise) const;
  int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  // integers too
  bool flag(std::string_view key, bool otherwise) const;
  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key) const;  // flags too, as 0 and 1
  std::vector<double> numbers(std::string_view key) const;    // integers too

  const std::vector<FileTensor>& tensors() const { return tensors_; }  // in the file's order
  const FileTensor* tensor(std::string_view name) const;               // null: not there

 private:
  // What convert makes of the key's value, with errors that name the key.
  template <class Convert>
  auto get(std::string_view key, Convert convert) const;

  MappedFile file_;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string_view, Value>> metadata_;
  std::vector<FileTensor> tensors_;
  // The names are views into the mapping, which stays where it is when the file is moved.
  std::map<std::string_view, size_t> key_index_;
  std::map<std::string_view, size_t> tensor_index_;
};

// The first elements of an array, at most `most`.
std::vector<GgufFile::Value> first_elements(const GgufFile::Array& array, size_t most);

}  // namespace quire
