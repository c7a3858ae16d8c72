#include "grammar/compile_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>
#include <vector>

#include "base/refused.h"
#include "grammar/compiled.h"

namespace quire::grammar {
namespace {

CompileCache::Result made() { return std::make_shared<Compiled>(xgrammar::CompiledGrammar(xgrammar::NullObj{})); }
size_t thousand(const Compiled&) { return 1000; }

TEST(CompileCache, MakesOnceAndKeeps) {
  CompileCache cache(1 << 20, thousand);
  int makes = 0;
  const auto make = [&] {
    ++makes;
    return made();
  };
  const auto first = cache.get("a", make);
  EXPECT_EQ(cache.get("a", make), first);
  EXPECT_NE(cache.get("b", make), first);
  EXPECT_EQ(makes, 2);
}

TEST(CompileCache, TheLeastRecentlyAskedForGoesFirst) {
  CompileCache cache(5000, thousand);
  int makes = 0;
  const auto make = [&] {
    ++makes;
    return made();
  };
  for (const char* key : {"a", "b", "c", "a", "d"}) cache.get(key, make);  // more than three do not fit
  EXPECT_LE(cache.bytes(), 5000u);
  EXPECT_EQ(makes, 4);
  cache.get("a", make);
  EXPECT_EQ(makes, 4);
  cache.get("b", make);
  EXPECT_EQ(makes, 5);
}

TEST(CompileCache, StaysSmallWhateverIsAsked) {
  CompileCache cache(10'000, thousand);
  for (int i = 0; i < 1000; ++i) {
    cache.get(std::to_string(i) + std::string(100, 'x'), made);
    ASSERT_LE(cache.bytes(), 10'000u);
  }
  CompileCache none(0, thousand);
  EXPECT_NE(none.get("a", made), nullptr);
  EXPECT_EQ(none.bytes(), 0u);
}

TEST(CompileCache, RefusalsAreKeptToo) {
  CompileCache cache(10'000, thousand);
  int makes = 0;
  const auto refuse = [&]() -> CompileCache::Result {
    ++makes;
    throw Refused("no");
  };
  EXPECT_THROW(cache.get("a", refuse), Refused);
  EXPECT_THROW(cache.get("a", refuse), Refused);
  EXPECT_EQ(makes, 1);
}

TEST(CompileCache, OtherFailuresMayPass) {
  CompileCache cache(10'000, thousand);
  const auto fail = []() -> CompileCache::Result { throw std::bad_alloc(); };
  EXPECT_THROW(cache.get("a", fail), std::bad_alloc);
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_NE(cache.get("a", made), nullptr);
}

TEST(CompileCache, ManyThreadsThatAskForOneMakeOne) {
  CompileCache cache(1 << 20, thousand);
  std::atomic<int> makes = 0;
  const auto make = [&] {
    ++makes;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return made();
  };
  std::vector<CompileCache::Result> results(8);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = cache.get("a", make); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(makes, 1);
  for (const auto& result : results) EXPECT_EQ(result, results.front());
}

}  // namespace
}  // namespace quire::grammar
