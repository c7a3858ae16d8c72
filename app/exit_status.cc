#include "exit_status.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/cuda.h"
#include "device_choice.h"
#include "model_path.h"
#include "one_line_errors.h"

namespace quire {
namespace {

// Which says what to do, or to ask less of.
bool is_bad_input(const std::exception& error) {
  return dynamic_cast<const BadModel*>(&error) || dynamic_cast<const UnusableDevice*>(&error) ||
         dynamic_cast<const cuda::OutOfMemory*>(&error);
}

int said(const std::exception& error) {
  std::cerr << "quire: " << in_plain_words(error) << '\n';
  return is_bad_input(error) ? kBadInput : kFailed;
}

}  // namespace

int exit_status(const std::function<int()>& command) {
  try {
    return command();
  } catch (const std::exception& error) {
    return said(error);
  }
}

void end_at_once(const std::exception& error) {
  const int status = said(error);
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace quire
