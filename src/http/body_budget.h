// The bytes of bodies that are being received or worked on, counted for each peer and for all together, so that one
// peer cannot take from the others what all may have. From any thread.
#pragma once
#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

namespace quire::http {

class BodyBudget {
 public:
  BodyBudget(size_t most, size_t most_of_peer) : most_(most), most_of_peer_(most_of_peer) {}

  enum class Outcome { held, peer_has_too_much, all_have_too_much };
  [[nodiscard]] Outcome hold(const std::string& peer, size_t bytes);  // nothing is held unless all of it is
  void release(const std::string& peer, size_t bytes);                // of what is held
  size_t held() const;

 private:
  const size_t most_, most_of_peer_;
  mutable std::mutex mutex_;
  size_t held_ = 0;
  std::unordered_map<std::string, size_t> of_peer_;  // none of them 0
};

}  // namespace quire::http
