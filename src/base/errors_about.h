// Says what a refusal is about: the reader of a length does not know the key, nor the reader of a key the file.
#pragma once
#include <string_view>

#include "base/check.h"
#include "base/cuda.h"

namespace quire {

// Runs body and returns what it returns; a CheckError that leaves it becomes "SUBJECT: what it said". What a GPU says, of
// its memory for instance, is about no subject of ours and stays what it is.
template <class Body>
decltype(auto) errors_about(std::string_view subject, Body&& body) {
  try {
    return body();
  } catch (const cuda::DeviceError&) {
    throw;
  } catch (const CheckError& error) {
    throw CheckError(cat(subject, ": ", error.what()));
  }
}

}  // namespace quire
