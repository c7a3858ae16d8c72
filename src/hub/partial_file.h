// A file that is on its way: what has come so far is on disk, under its .incomplete name, and a later process goes on
// from there. Its hash is computed as bytes come.
//
// Errors   CheckError, one line with the path: what cannot be read or written. What was written before stays.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "hub/digest.h"

namespace quire::hub {

class PartialFile {
 public:
  // Goes on with what is there, unless that is more than the `bytes` that the file will have.
  PartialFile(const std::filesystem::path& path, const std::string& etag, int64_t bytes);
  ~PartialFile();  // keeps what has come, if anything has
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  int64_t done() const { return done_; }
  int64_t left() const { return bytes_ - done_; }
  void append(std::string_view bytes);
  void start_over();

  bool is_right();  // all has come: whether its hash is what the ETag says, as far as that says anything
  void move_to(const std::filesystem::path& place);
  void throw_away();

 private:
  void hash_what_is_there();

  const std::filesystem::path path_;
  const std::string etag_;
  const int64_t bytes_;
  int descriptor_ = -1;
  int64_t done_ = 0;
  std::optional<Digest> digest_;
};

}  // namespace quire::hub
