// Where a step's time goes: how long each kind of operation took, added up while an Exec is told to keep times.
//
// A kind is the type of an operation's parameters: MatmulArgs is a "Matmul". Only for profiles: reading the clock twice
// an operation costs some 50 ns.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <vector>

namespace quire {

class OpTimes {
 public:
  template <class Call>
  void time(const std::type_info& kind, Call call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    Sum& sum = sums_[kind];
    sum.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ++sum.calls;
  }

  struct Entry {
    std::string kind;
    int64_t calls;
    double seconds;
  };
  std::vector<Entry> entries() const;  // the longest first

 private:
  struct Sum {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::unordered_map<std::type_index, Sum> sums_;
};

// "quire::ops::ByRow<quire::ops::(anonymous namespace)::QuantiseOp>" is a "Quantise".
std::string kind_of_operation(const std::string& parameters);

}  // namespace quire
