#include "grammar/call_grammars.h"

#include <algorithm>

#include "base/processor_time.h"
#include "base/refused.h"

namespace quire::grammar {

template <class Work>
auto CallGrammars::within_time(const Work& work) {
  const auto most = compiler_.limits().call_time;
  check_input(used_ <= most, "the constraints of this call take longer to compile than ", most.count(), " ms");
  struct Charge {  // also for what is refused
    ~Charge() { used += thread_processor_time() - began; }
    std::chrono::nanoseconds& used;
    const std::chrono::nanoseconds began = thread_processor_time();
  } const charge{used_};
  return work();
}

std::shared_ptr<const Compiled> CallGrammars::compile(const Source& source) {
  const auto known =
      std::find_if(compiled_.begin(), compiled_.end(), [&](const auto& one) { return one.first == source; });
  if (known != compiled_.end()) return known->second;
  auto compiled = within_time([&] { return compiler_.compile(source); });
  compiled_.emplace_back(source, compiled);
  return compiled;
}

std::vector<std::string> CallGrammars::unenforced(const Source& source) {
  if (!source.loose) return {};
  return within_time([&] { return compiler_.unenforced(source); });
}

std::unique_ptr<engine::TokenMask> CallGrammars::mask(const Source& source) {
  return compiler_.mask(compile(source), masks_);
}

}  // namespace quire::grammar
