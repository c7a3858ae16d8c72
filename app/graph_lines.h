// The lines `graph/...` of `quire bench metadata`: one small operation called in a plain loop, and the same replayed
// from a graph. Both give the time of one operation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/exec.h"
#include "base/graph.h"
#include "report.h"
#include "short_line.h"

namespace quire::bench {

class GraphLines {
 public:
  explicit GraphLines(Exec& exec);                                // captures the graph
  void add(const Wanted& wanted, std::vector<ShortLine>& lines);  // both or none; they refer to this object

  // Gives the replay its limit, the plain call: a replayed operation cannot be faster than the operation itself.
  static void hold_replay_against_call(std::vector<Result>& results);

 private:
  struct Tick {
    int64_t* counter;
    int64_t step;
  };
  static void tick(const Tick& params, Exec&);
  void call_all();

  Exec& exec_;
  Graph graph_;
  std::vector<Tick> ticks_;
  int64_t counter_ = 0;
};

}  // namespace quire::bench
