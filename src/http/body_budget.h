// The bytes of bodies, of requests that are being received or worked on, or of answers that wait to be read: counted
// for each peer and for all together, so that one peer cannot take from the others what all may have. From any thread.
#pragma once
#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace quire::http {

class BodyBudget {
 public:
  BodyBudget(size_t most, size_t most_of_peer) : most_(most), most_of_peer_(most_of_peer) {}

  enum class Outcome { held, peer_has_too_much, all_have_too_much };
  [[nodiscard]] Outcome hold(const std::string& peer, size_t bytes);  // nothing is held unless all of it is
  void release(const std::string& peer, size_t bytes);                // of what is held
  size_t held() const;

  // What one request or answer holds, until it is destroyed: who still has the body has its share. The budget outlives
  // it.
  class Share {
   public:
    Share(BodyBudget& budget, std::string peer) : budget_(&budget), peer_(std::move(peer)) {}
    Share(Share&& other) noexcept
        : budget_(other.budget_), peer_(std::move(other.peer_)), bytes_(std::exchange(other.bytes_, 0)) {}
    ~Share() { release(); }

    size_t bytes() const { return bytes_; }
    [[nodiscard]] Outcome grow_to(size_t bytes);
    void shrink_to(size_t bytes);
    void release() { shrink_to(0); }

   private:
    BodyBudget* budget_;
    std::string peer_;
    size_t bytes_ = 0;
  };

 private:
  const size_t most_, most_of_peer_;
  mutable std::mutex mutex_;
  size_t held_ = 0;
  std::unordered_map<std::string, size_t> of_peer_;  // none of them 0
};

}  // namespace quire::http
