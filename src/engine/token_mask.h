// Which tokens a request may continue with: a constraint on its output, asked before each draw.
//
// The engine calls next() and accept() of one mask from one thread at a time, in turns: next, draw, accept. It does so
// beside the forward pass (ahead_masks.h), for masks of different requests in parallel. A retracted request keeps its
// mask: its tokens are not drawn again.
#pragma once
#include <cstdint>

#include "base/check.h"

namespace quire::engine {

// What next() and accept() throw when the constraint itself is to blame: its request is refused. Whatever else they
// throw is a fault of the server: the request fails.
class ConstraintRefused : public CheckError {
 public:
  using CheckError::CheckError;
};

class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // [ceil(vocabulary / 32)] bit set: allowed; at least one is. Null: all are. Valid until accept().
  virtual const uint32_t* next() = 0;
  virtual void accept(int32_t token) = 0;
};

}  // namespace quire::engine
