#include "serve/job_registry.h"

#include <utility>

#include "serve/live_job.h"

namespace quire::serve {

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
    if (job->name().rid.starts_with(rid_prefix) && key.value_or(job->name().key) == job->name().key)
      found.push_back(job);
  return found;
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
