// The jobs that have not ended yet, by the names under which callers can abort them. From any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace quire::serve {

class JobRun;

class JobRegistry {
 public:
  uint64_t add(std::shared_ptr<JobRun> job);  // returns what remove() wants
  void remove(uint64_t number);
  std::vector<std::shared_ptr<JobRun>> named(std::string_view rid_prefix) const;  // "": all
  int32_t size() const;
  void clear();  // they go on unlisted

 private:
  mutable std::mutex mutex_;
  uint64_t added_ = 0;
  std::unordered_map<uint64_t, std::shared_ptr<JobRun>> jobs_;
};

}  // namespace quire::serve
