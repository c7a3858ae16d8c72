// Inside cpu::attend: one attention call as items that threads take, and what each instruction set provides.
//
// An item is (tile of query positions of one sequence, group of kv heads, all key ranges or one of them). attend_cpu.cc
// cuts, attend_walk.h walks an item's keys in the fixed order, attend_softmax.h turns a block's scores into
// probabilities, attend_vector.h (in attend_{plain,avx2,avx512,avx512bf16}.cc) and attend_amx.cc do the products of a
// block.
#pragma once
#include <cstddef>
#include <cstdint>

#include "attn/attention.h"
#include "attn/cpu_choice.h"

namespace quire::attn::cpu {

struct Task {
  AttendArgs args;
  Choice choice;
  int32_t live;         // sequences
  int32_t group;        // query heads of a kv head
  int32_t kv_heads;     // kv heads in an item
  int32_t head_groups;  // items for each tile: (kv heads / kv_heads) x (chunks of the group)
};

// Runs one item with the thread's scratch.
using ItemFn = void(const Task& task, int64_t item, std::byte* scratch);
// Folds the partial results of sequence `item / kv heads` for one kv head, if the sequence was split.
using FoldFn = void(const Task& task, int64_t item, std::byte* scratch);

struct Kernel {
  ItemFn* item;
  FoldFn* fold;
};

Kernel plain_kernel(Dtype kv_type);
Kernel avx2_kernel(Dtype kv_type);
Kernel avx512_kernel(Dtype kv_type);
Kernel avx512bf16_kernel();  // bf16 queries, keys and values
Kernel amx_kernel();         // bf16 queries, keys and values

// The two halves of attend, one recorded operation each.
AttendFn attend_items;   // every item; those of split sequences leave partial results in the arena's workspace
AttendFn combine_splits;  // the results of split sequences from those; nothing when no sequence was split

// Scratch that an item may need, in bytes; checked at the door.
size_t scratch_needed(const Choice& choice, int32_t key_dim, int32_t value_dim);

}  // namespace quire::attn::cpu
