#include "serve/job_registry.h"

#include <algorithm>
#include <utility>

#include "serve/live_job.h"

namespace quire::serve {
namespace {

// Whether it is the call's only job, or one of its several: "rid", "rid_1".
bool is_of_call(std::string_view name, std::string_view rid) {
  return name.starts_with(rid) && (name.size() == rid.size() || name[rid.size()] == '_');
}

bool is_meant(const LiveJob::Name& name, std::string_view rid_prefix, std::optional<int32_t> key) {
  if (!key) return name.rid.starts_with(rid_prefix);
  return name.key == *key && (*key < 0 ? is_of_call(name.rid, rid_prefix) : name.rid.starts_with(rid_prefix));
}

}  // namespace

uint64_t JobRegistry::add(std::shared_ptr<LiveJob> job) {
  const std::lock_guard lock(mutex_);
  jobs_.emplace(++added_, std::move(job));
  return added_;
}

void JobRegistry::remove(uint64_t number) {
  std::shared_ptr<LiveJob> last;  // let go without the lock
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  last = std::move(found->second);
  jobs_.erase(found);
}

std::vector<std::shared_ptr<LiveJob>> JobRegistry::named(std::string_view rid_prefix,
                                                         std::optional<int32_t> key) const {
  std::vector<std::shared_ptr<LiveJob>> found;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, job] : jobs_)
    if (is_meant(job->name(), rid_prefix, key)) found.push_back(job);
  return found;
}

int32_t JobRegistry::of_key(int32_t key) const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& one) { return one.second->name().key == key; }));
}

void JobRegistry::clear() {
  std::unordered_map<uint64_t, std::shared_ptr<LiveJob>> all;  // let go without the lock
  const std::lock_guard lock(mutex_);
  all.swap(jobs_);
}

int32_t JobRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(jobs_.size());
}

}  // namespace quire::serve
