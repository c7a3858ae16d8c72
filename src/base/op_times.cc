#include "base/op_times.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

namespace quire {
namespace {

std::string demangled(const char* name) {
  int status;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return text ? text.get() : name;
}

}  // namespace

std::string kind_of_operation(const std::string& parameters) {
  std::string kind = parameters.substr(0, parameters.find_last_not_of("> ") + 1);  // the innermost of templates
  const size_t before = kind.find_last_of(":<");
  if (before != std::string::npos) kind.erase(0, before + 1);
  for (const char* suffix : {"Args", "Op"})
    if (kind.ends_with(suffix) && kind != suffix) kind.erase(kind.size() - std::string_view(suffix).size());
  return kind;
}

std::vector<OpTimes::Entry> OpTimes::entries() const {
  std::map<std::string, Sum> by_kind;
  for (const auto& [type, sum] : sums_) {
    Sum& all = by_kind[kind_of_operation(demangled(type.name()))];
    all.calls += sum.calls;
    all.seconds += sum.seconds;
  }
  std::vector<Entry> entries;
  for (const auto& [kind, sum] : by_kind) entries.push_back({kind, sum.calls, sum.seconds});
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.seconds > b.seconds; });
  return entries;
}

}  // namespace quire
