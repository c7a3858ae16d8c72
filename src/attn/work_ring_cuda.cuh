// Work that one thread of a block finds and all warps of all roles do, one item after the other: a ring of items in
// shared memory, so that who is ahead (the producer, usually) is not held up by who is behind.
//
//   WorkRing    in shared memory; begin() by one thread before the block meets
//   Publisher   the one thread's: publish(find), where find(item) says whether there is one more
//   Taker       a warp's: take() in turn, then release() in the same order
#pragma once
#include <cstdint>

#include "attn/attend_cuda.cuh"
#include "base/hopper.cuh"
#include "base/tensor_core.cuh"

namespace quire::attn::cuda {

template <class Item, int32_t kCount>
struct WorkRing {
  hopper::Barrier full[kCount], empty[kCount];
  Item item[kCount];
  bool has_item[kCount];

  // takers: warps that take every item.
  __device__ void begin(int32_t takers) {
    for (int32_t i = 0; i < kCount; ++i) {
      hopper::init_barrier(&full[i], 1);
      hopper::init_barrier(&empty[i], takers);
    }
  }
};

template <class Item, int32_t kCount>
class Publisher {
 public:
  __device__ explicit Publisher(WorkRing<Item, kCount>& ring) : ring_(ring) {}

  template <class Find>
  __device__ void publish(const Find& find) {
    hopper::wait(&ring_.empty[turn_.stage], turn_.phase ^ 1);
    ring_.has_item[turn_.stage] = find(ring_.item[turn_.stage]);
    hopper::arrive(&ring_.full[turn_.stage]);
    turn_.next(kCount);
  }

 private:
  WorkRing<Item, kCount>& ring_;
  hopper::PipelineState turn_;
};

template <class Item, int32_t kCount>
class Taker {
 public:
  __device__ explicit Taker(WorkRing<Item, kCount>& ring) : ring_(ring) {}

  // Stays until it is released; null: there are no more.
  __device__ const Item* take() {
    hopper::wait(&ring_.full[taken_.stage], taken_.phase);
    const Item* const item = uniform(ring_.has_item[taken_.stage]) ? &ring_.item[taken_.stage] : nullptr;
    taken_.next(kCount);
    return item;
  }
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) hopper::arrive(&ring_.empty[released_.stage]);
    released_.next(kCount);
  }

 private:
  WorkRing<Item, kCount>& ring_;
  hopper::PipelineState taken_, released_;
};

}  // namespace quire::attn::cuda
