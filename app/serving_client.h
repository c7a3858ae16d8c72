// A load client on one thread: many connections without blocking, so that it takes little of the machine that it
// measures.
//
// Closed loop by default: as many requests are under way as there are connections, each followed by the next. With a
// rate, requests arrive at random moments (Poisson) whether others are done or not, and wait for a free connection; the
// wait counts.
//
// Errors   CheckError when the address cannot be found or the server says nothing for minutes. What goes wrong with
//          single requests is in their outcomes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "serving_arrivals.h"
#include "serving_load.h"
#include "serving_socket.h"

namespace quire::bench {

struct ClientOptions {
  Address address;
  int32_t concurrency = 16;  // connections, and requests that are under way together
  ArrivalOptions arrivals = {};
  int32_t idle_connections = 0;  // beside, that have had one answer and wait
};

struct RequestOutcome {
  int status = 0;                               // 0: no whole answer came
  std::string error = {};                       // of what is not 200: what was said, or what happened
  double first_seconds = 0, total_seconds = 0;  // since it was to begin
  std::vector<double> gaps = {};                // seconds between its events with text
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
};

struct LoadOutcome {
  std::vector<RequestOutcome> requests;  // in the order of their ends
  double seconds;                        // from the first beginning to the last end
  int32_t idle_at_end;                   // idle connections that the server has kept
};

LoadOutcome run_load(const Load& load, const ClientOptions& options);

}  // namespace quire::bench
