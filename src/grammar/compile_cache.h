// Compiled grammars, kept until there are too many of them; the one that was asked for longest ago goes first.
//
// Many threads may ask at once. What is asked for while it is being made is waited for, not made again; that a source is
// refused is kept like a result, so that one that takes long to fail does so once, and other failures are not, which may
// pass. At most a few are made at a time, so that hostile sources cannot take all processors.
#pragma once
#include <cstddef>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <unordered_map>

namespace quire::grammar {

class Compiled;

class CompileCache {
 public:
  using Result = std::shared_ptr<const Compiled>;
  using Make = std::function<Result()>;                    // may throw
  using Measure = std::function<size_t(const Compiled&)>;  // bytes

  CompileCache(size_t most_bytes, Measure measure);

  Result get(const std::string& key, const Make& make);  // or make's exception

  size_t bytes() const;

 private:
  struct Entry {
    std::string key;
    std::shared_future<Result> result;
    size_t bytes = 0;  // 0: still being made
  };
  using Entries = std::list<Entry>;

  // True: the key is known, and its result is given. False: the caller makes the result, and then keeps or drops it.
  bool find_or_enter(const std::string& key, std::shared_future<Result>& result);
  void keep(const std::string& key, size_t bytes);
  void drop(const std::string& key);
  void evict();

  const size_t most_bytes_;
  const Measure measure_;
  std::counting_semaphore<> makers_;
  mutable std::mutex mutex_;
  Entries entries_;  // the latest asked for first
  std::unordered_map<std::string, Entries::iterator> places_;
  size_t bytes_ = 0;
};

}  // namespace quire::grammar
