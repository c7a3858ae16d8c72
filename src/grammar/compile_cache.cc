#include "grammar/compile_cache.h"

#include <exception>
#include <utility>

#include "base/refused.h"

namespace quire::grammar {
namespace {

constexpr int kMostMakers = 2;
constexpr size_t kEntryBytes = 512;  // an entry itself, its places in list and table, a failure's text

}  // namespace

CompileCache::CompileCache(size_t most_bytes, Measure measure)
    : most_bytes_(most_bytes), measure_(std::move(measure)), makers_(kMostMakers) {}

CompileCache::Result CompileCache::get(const std::string& key, const Make& make) {
  std::promise<Result> promise;
  std::shared_future<Result> result = promise.get_future().share();
  if (!find_or_enter(key, result)) {
    size_t bytes = kEntryBytes + 2 * key.size();
    bool is_kept = true;
    makers_.acquire();
    try {
      Result made = make();
      bytes += measure_(*made);
      promise.set_value(std::move(made));
    } catch (const Refused&) {
      promise.set_exception(std::current_exception());
    } catch (...) {
      promise.set_exception(std::current_exception());
      is_kept = false;
    }
    makers_.release();
    is_kept ? keep(key, bytes) : drop(key);
  }
  return result.get();
}

size_t CompileCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

bool CompileCache::find_or_enter(const std::string& key, std::shared_future<Result>& result) {
  const std::lock_guard lock(mutex_);
  if (const auto known = places_.find(key); known != places_.end()) {
    entries_.splice(entries_.begin(), entries_, known->second);
    result = known->second->result;
    return true;
  }
  entries_.push_front({.key = key, .result = result});
  places_.emplace(key, entries_.begin());
  return false;
}

void CompileCache::drop(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto place = places_.find(key);
  entries_.erase(place->second);
  places_.erase(place);
}

void CompileCache::keep(const std::string& key, size_t bytes) {
  const std::lock_guard lock(mutex_);
  places_.at(key)->bytes = bytes;
  bytes_ += bytes;
  evict();
}

void CompileCache::evict() {
  auto entry = entries_.end();
  while (bytes_ > most_bytes_ && entry != entries_.begin()) {
    --entry;
    if (entry->bytes == 0) continue;
    bytes_ -= entry->bytes;
    places_.erase(entry->key);
    entry = entries_.erase(entry);
  }
}

}  // namespace quire::grammar
