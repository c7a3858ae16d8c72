// What prefill's producer does with the tiles of its block: in which order it loads, and when it signals that a load
// is there. The same text for the warps of prefill_load_cuda.cuh and for the threads of prefill_producer_test.cc.
//
//   TileScheduler   publish_next()                            waits for a place in the ring of tiles; one thread's
//   Tiles           take(), release()                         take() waits until the tile is published
//   Loader          look_up(), load_keys(), load_values()     loads wait until their stage is free, or until that of
//                                                             the load before is, which they then signal
//                   publishes_late()                          whether a tile's first keys are loaded before the next
//                                                             tile is published, which takes its time
//                   keys_must_wait()                          whether no stage is free for the next keys
//                   flush()                                   every load that was issued is signalled
//
// Why nobody waits for ever. A consumer waits for tiles to be published and for loads to be signalled; it releases the
// keys of step n when it has the values of step n - 1, the values of step n when it has the keys of step n + 1 (or at
// once, where n is the last of its tile), and a tile when it has all of that tile's loads. So the producer may wait for
// what a consumer releases as long as no load that this takes is issued but not yet signalled. Only the last one issued
// can be unsignalled (DeferredSignal), and not even that one where the next tile has no keys, for there produce()
// flushes. Hence a producer at tile t has unsignalled at most a load of t, or the last values of t - 1 if t has keys,
// and waits for
//
//   a place in the ring    of tile t + 1 - kTileRing, whose loads are signalled: they are not of t, nor of t - 1
//   tile t + 1             which the scheduler publishes at the begin of its own t, after no wait but the one above and
//                          perhaps the one below, for the stage of t's first keys
//   a stage                released for steps at least kLeastStages before the one to be loaded; these take no load
//                          later than the last but one
//
// whatever the tiles have: keys first, last, in turns, or none at all for longer than the ring.
#pragma once
#include <cstdint>

#include "base/device_code.h"

namespace quire::attn::cuda {

constexpr int32_t kTileRing = 4;     // tiles that are known ahead
constexpr int32_t kLeastStages = 2;  // of keys, and of values
static_assert(kTileRing > 2, "the place of tile t + 1 is an earlier tile's than t - 1");

// Loads whose end their maker must see before it signals them, which it does when it has issued the next one.
//   Copies   end_load(), wait_for_all_but<kLoads>(), signal(full)
template <class Copies, class Barrier>
class DeferredSignal {
 public:
  // The copies since the last call will fill this.
  QUIRE_DEVICE void issued(Barrier* full) {
    Copies::end_load();
    Copies::template wait_for_all_but<1>();
    if (unsignalled_) Copies::signal(unsignalled_);
    unsignalled_ = full;
  }
  QUIRE_DEVICE void flush() {
    if (!unsignalled_) return;
    Copies::template wait_for_all_but<0>();
    Copies::signal(unsignalled_);
    unsignalled_ = nullptr;
  }

 private:
  Barrier* unsignalled_ = nullptr;
};

// Keys of a step come before the values of the step before it: they are wanted first. Where the next step's keys lie is
// looked up a step ahead, also across tiles. The first tile is published already.
//   Source, Steps   of a tile: where its keys come from; its steps end - 1, end - 2, ... first, or none
template <class Source, class Steps, class Tiles, class TileScheduler, class Loader>
QUIRE_DEVICE void produce(Tiles& tiles, TileScheduler& scheduler, bool publishes, Loader& loader) {
  auto* tile = tiles.take();
  if (!tile) return;
  Source source(*tile);
  Steps steps(*tile);
  auto slot = loader.look_up(source, steps.end - 1);
  while (true) {
    const bool publishes_late = loader.publishes_late() && steps.first < steps.end;
    if (publishes && !publishes_late) scheduler.publish_next();
    auto before = slot;
    for (int32_t step = steps.end - 1; step >= steps.first; --step) {
      const auto next = loader.look_up(source, step - 1);
      loader.load_keys(source, step, slot);
      if (step < steps.end - 1)
        loader.load_values(source, step + 1, before);
      else if (publishes && publishes_late)
        scheduler.publish_next();
      before = slot;
      slot = next;
    }
    auto* const last = tile;
    tile = tiles.take();
    const Source next_source(tile ? *tile : *last);
    const Steps next_steps(tile ? *tile : *last);
    slot = loader.look_up(next_source, next_steps.end - 1);
    if (steps.first < steps.end) loader.load_values(source, steps.first, before);
    // No load follows that would signal this one, or none soon, and the consumers have nothing left to do but to wait
    // for it.
    if (!tile || next_steps.first == next_steps.end || loader.keys_must_wait()) loader.flush();
    tiles.release();
    if (!tile) return;
    source = next_source;
    steps = next_steps;
  }
}

}  // namespace quire::attn::cuda
