#include "http/request_id.h"

#include <algorithm>
#include <cstdio>
#include <random>

namespace quire::http {
namespace {

constexpr size_t kLongest = 128;

bool can_be_one(std::string_view text) {
  return !text.empty() && text.size() <= kLongest &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string request_id(std::string_view of_client) {
  if (can_be_one(of_client)) return std::string(of_client);
  thread_local std::mt19937_64 random(std::random_device{}());
  const auto high = static_cast<unsigned long long>(random()), low = static_cast<unsigned long long>(random());
  char text[40];
  return {text, static_cast<size_t>(std::snprintf(text, sizeof text, "req-%016llx%08llx", high, low >> 32))};
}

}  // namespace quire::http
