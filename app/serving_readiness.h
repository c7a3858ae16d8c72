// Waits for many sockets at once. A socket that is closed is forgotten by itself.
//
// Errors   CheckError when the system refuses.
#pragma once
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/check.h"

namespace quire::bench {

class Readiness {
 public:
  Readiness() : descriptor_(epoll_create1(EPOLL_CLOEXEC)) { check(descriptor_ >= 0, "no epoll"); }
  ~Readiness() { close(descriptor_); }
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  void add(int socket, size_t index, bool wants_to_send) { control(EPOLL_CTL_ADD, socket, index, wants_to_send); }
  void change(int socket, size_t index, bool wants_to_send) { control(EPOLL_CTL_MOD, socket, index, wants_to_send); }

  // The indices of sockets that something can be done with; none when `until` is over.
  std::vector<size_t> wait(std::chrono::steady_clock::time_point until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    epoll_event events[64];
    const int count = epoll_wait(descriptor_, events, std::size(events), static_cast<int>(std::max<int64_t>(left, 0)));
    std::vector<size_t> ready;
    for (int i = 0; i < count; ++i) ready.push_back(events[i].data.u64);
    return ready;
  }

 private:
  void control(int operation, int socket, size_t index, bool wants_to_send) {
    epoll_event event{};
    event.events = EPOLLIN | (wants_to_send ? uint32_t{EPOLLOUT} : 0);
    event.data.u64 = index;
    check(epoll_ctl(descriptor_, operation, socket, &event) == 0, "epoll refuses a socket");
  }

  int descriptor_;
};

}  // namespace quire::bench
