// The input of a fuzz target as files: they lie in memory and have paths all the same.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace quire::fuzz {

class InputFile {
 public:
  InputFile();
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  void set(std::string_view bytes);  // nobody may have it mapped
  std::string path() const;

 private:
  int descriptor_;
};

// A folder of such files; gone with the object.
class InputFolder {
 public:
  InputFolder();
  ~InputFolder();

  const std::string& path() const { return path_; }
  void set(const std::string& name, std::string_view bytes);
  void remove(const std::string& name);

 private:
  std::string path_;
  std::map<std::string, InputFile> files_;
};

// An input that is several files: parts with "\n--\n" between them, exactly `count` of them, empty where there are
// fewer. The last takes all that is left.
std::vector<std::string_view> parts_of(std::string_view input, size_t count);

}  // namespace quire::fuzz
