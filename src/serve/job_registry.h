// The jobs that have not ended yet, by the names and the keys under which callers can abort them. From any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quire::serve {

class LiveJob;

class JobRegistry {
 public:
  uint64_t add(std::shared_ptr<LiveJob> job);  // returns what remove() wants
  void remove(uint64_t number);
  // rid_prefix "": all; without a key, everybody's. Those who call without one (-1) are not all the same: of theirs, a
  // call has to be named in full.
  std::vector<std::shared_ptr<LiveJob>> named(std::string_view rid_prefix, std::optional<int32_t> key) const;
  int32_t of_key(int32_t key) const;
  int32_t size() const;
  void clear();  // they go on unlisted

 private:
  mutable std::mutex mutex_;
  uint64_t added_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<LiveJob>> jobs_;
};

}  // namespace quire::serve
