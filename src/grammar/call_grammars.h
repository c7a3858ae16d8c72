// The grammars of one call: each source is compiled once, and all of them together have a limit of time.
//
// A call may bring many sources, each of which takes as long as it may. Once they have taken CompilerLimits::call_time,
// no other is begun: there is enough for one that takes too long and another in its place. What others have compiled
// takes none of it.
//
// Errors   Refused, as of the compiler; and when the time is over.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grammar/compiler.h"

namespace quire::grammar {

class CallGrammars {  // for one thread; outlived by its compiler
 public:
  explicit CallGrammars(const Compiler& compiler) : compiler_(compiler), masks_(compiler.allowance()) {}

  std::shared_ptr<const Compiled> compile(const Source& source);
  std::vector<std::string> unenforced(const Source& source);
  // A fresh text at its beginning; those of a call share the time that masks may take.
  std::unique_ptr<engine::TokenMask> mask(const Source& source);

 private:
  template <class Work>
  auto within_time(const Work& work);

  const Compiler& compiler_;
  const std::shared_ptr<TimeAllowance> masks_;
  std::chrono::nanoseconds used_{0};  // of a processor
  std::vector<std::pair<Source, std::shared_ptr<const Compiled>>> compiled_;
};

}  // namespace quire::grammar
