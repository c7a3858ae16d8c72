// What a row cannot do, its request is told: exceptions of one row's computation become that row's result.
#pragma once
#include <exception>
#include <vector>

#include "base/cuda.h"
#include "engine/step.h"
#include "engine/token_mask.h"

namespace quire::engine {

// compute(tokens) fills result's tokens, which are empty before, or throws. What a device throws that computes nothing
// any more is not one row's.
template <class Compute>
void fill_result(RowResult& result, const Compute& compute) {
  result.clear();
  try {
    compute(result.tokens);
  } catch (const cuda::DeviceError&) {
    throw;
  } catch (const ConstraintRefused& refused) {
    result.error = refused.what();
    result.refused = true;
  } catch (const std::exception& error) {
    result.error = error.what();
  } catch (...) {
    result.error = "the mask of allowed tokens threw";
  }
}

}  // namespace quire::engine
