// A small world to attend in, for tests: pools, tables, stores, an arena and inputs at fixed addresses, in which steps
// are laid out one after another and judged by the dense reference.
//
// Everything that a step must not read is hostile. Slots that hold no live token are NaN in every type: free pages,
// page tails, the reserved page, and a guard page whose id is also a request row, so that a kernel that reads the
// poison of Poison::guard stays in range and computes NaN.
//
//   World world(spec);                              one pool, arena and set of addresses for its life
//   world.lay_out(step, exec);                      requests open and grow as the step needs; only live tokens stored
//   world.poison(Poison::guard);
//   write_metadata(world.shape(), world.inputs(), world.arena(), exec);
//   attend(world.args(), exec);
//   expect_near(world.result(), world.expected())   see expect_near.h
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attn/attention.h"
#include "attn/testing/dense_reference.h"
#include "attn/write_metadata.h"
#include "base/exec.h"
#include "kv/page_pool.h"
#include "kv/request_table.h"
#include "kv/store.h"
#include "kv/window_pool.h"

namespace quire::attn::testing {

enum class Layout { contiguous, shuffled, interleaved };
const char* to_string(Layout layout);

enum class Poison {
  out_of_range,  // 0x7f7f7f7f: for the shadow, which must not use it
  guard,         // kGuard: for kernels, which then compute NaN
};
// A request row, a page, and (as a slot) an offset in a page that all hold NaN and are never handed out.
inline constexpr int32_t kGuard = 5;

struct WorldSpec {
  Limits limits;  // heads and dims are taken from `sizes`; steps may have either form
  Sizes sizes;
  Dtype out_type = Dtype::f32;
  int32_t pages = 64;        // of each pool
  int32_t query_rows = 64;   // most in a step
  int32_t window_pool = -1;  // the window of layers with a pool of their own; -1: none
  Layout layout = Layout::shuffled;
  Place place = Place::host;  // pinned: the GPU may attend in it, too
  bool deterministic = false;
};

struct Result : Attention {
  std::vector<std::byte> out_bytes;  // [rows, heads, value dim] as stored
  int64_t rows;
};
// The bits of one query row, its log-sum-exp included.
std::string row_bits(const Result& result, int64_t row);

class World {
 public:
  explicit World(const WorldSpec& spec);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Lays out the step: opens requests that are new, gives every row exactly the pages that the step needs, stores the
  // tokens and queries it names and makes all else NaN, fills the inputs, and checks them.
  void lay_out(const Step& step, Exec& exec);
  void close(int32_t request);  // its pages are free, and NaN
  // A new request that begins with the first `tokens` tokens of another, in the same pages. Whoever writes into a page
  // that others also have gets a copy first. The window pool does not share: its side is stored anew.
  void fork(int32_t parent, int32_t child, int32_t tokens, Exec& exec);
  // After a verify_tree step: moves the first `tokens` nodes of the request's main line to where its text continues.
  void accept(int32_t request, int32_t tokens, Exec& exec);
  // Fills what the step must write before it is read: the arena, outputs, and table entries past each row's pages.
  void poison(Poison poison);

  StepShape shape() const;
  StepInputs inputs() const { return inputs_.inputs(); }
  const Buffer& input_memory() const { return inputs_.memory(); }  // all of them, as StepInputBuffers lays them out
  const MetadataArena& arena() const { return on_gpu_ ? *gpu_arena_ : arena_; }  // of whom the step was laid out for
  AttendArgs args() { return args_with(arena()); }
  AttendArgs args_with(const MetadataArena& arena);  // an arena that is not the world's
  // draft_tree: [live, topk] for follow_parents(), after the draft step `step`.
  const int32_t* draft_parents(int32_t step);
  Result result() const;
  Attention expected();
  kv::RequestTable& table() { return table_; }
  RequestRow row(int32_t request) const { return requests_.at(request).row; }

 private:
  struct Request {
    RequestRow row;
    int32_t encoder = 0;
    int32_t stored = 0;         // main-line tokens in the store
    int32_t window_stored = 0;  // likewise in the window's
    std::vector<PageId> draft_pages;
  };
  // One pool's side of a request: where its text begins, and up to where it is stored.
  struct Side {
    kv::PagePool& pool;
    kv::RequestTable& table;
    kv::KvStore& store;
    RequestRow row;
    int32_t first;  // position in the row of text position 0
    int32_t& stored;
  };
  struct Writing {  // rows to store together
    std::vector<TokenSlot> slots;
    std::vector<Token> tokens;
  };

  Side text_side(Request& request);
  Side window_side(Request& request);
  int32_t tokens_in_row(const Sequence& sequence) const;
  void open(const Sequence& sequence, Exec& exec);
  void own_pages(Side side, Exec& exec);
  void shrink(Side side, const Sequence& sequence, Exec& exec);
  void grow_all();
  void advance_window(const Sequence& sequence, Request& request);
  void store_text(Side side, const Sequence& sequence, Exec& exec);
  void compact(Side side, const Sequence& sequence, int32_t tokens, Exec& exec);
  void lay_out_drafts(int32_t b, Request& request, Exec& exec);
  void release_drafts(Request& request);
  void store(kv::KvStore& store, const Writing& writing, Exec& exec);
  Exec& laying(Exec& exec) { return exec.stream() ? host_ : exec; }
  void fill_inputs();
  void fill_queries();
  bool has_window_side() const { return window_ && step_.mode != Mode::draft_tree; }

  WorldSpec spec_;
  Exec host_{{.threads = 1}};  // lays out what a GPU attends to: rows and slots come from lists that it cannot read
  std::mt19937_64 random_;
  TokenValues tokens_;
  kv::PagePool pool_;
  kv::RequestTable table_;
  kv::KvStore store_;
  std::unique_ptr<kv::WindowPool> window_;
  std::optional<kv::KvStore> window_store_;
  MetadataArena arena_;
  std::optional<MetadataArena> gpu_arena_;
  bool on_gpu_ = false;
  StepInputBuffers inputs_;
  std::map<int32_t, Request> requests_;
  Step step_;
  Buffer sinks_;
  Buffer queries_;  // 4 bytes an element, whatever its type
  Buffer out_;      // likewise
  Buffer lse_;
  Buffer parents_;  // [draft steps, batch, topk]
};

}  // namespace quire::attn::testing
