// A seeded random walk through the life of a server: requests arrive, are prefilled in chunks, decoded, drafted for,
// verified with random trees whose accepted path is compacted, forked with copy-on-write, rolled back, and end. All
// steps happen in one world at the same addresses, over poison, padded or not, in both forms, on every instruction set
// that the machine has, and each is compared with the dense reference. On a GPU shorter walks go through problems of
// real models, for which it has kernels of their own, and the one that must take a step is seen to take it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "attn/testing/case.h"
#include "attn/testing/expect_near.h"
#include "attn/testing/report_kernels.h"
#include "base/cuda.h"
#include "base/graph.h"
#include "gpu_problems.h"

namespace quire::attn::testing {
namespace {

constexpr int32_t kPageSizes[] = {1, 16, 32, 64, 128};
// The kinds of layers that a model has beside the full ones.
constexpr LayerKind kOtherKinds[] = {LayerKind::window, LayerKind::local, LayerKind::encoder};

// Sanitizers make a step many times slower; their builds take a share of the walk.
constexpr int32_t kWholeWalk = 3000;
constexpr int32_t kSteps = kWholeWalk / QUIRE_WALK_DIVISOR;
static_assert(kWholeWalk * std::size(kPageSizes) * std::size(kOtherKinds) >= 20000);

constexpr int32_t kMostRequests = 6, kBatch = 8, kContext = 700, kShort = 150;
constexpr int32_t kBranches = 3, kDraftSteps = 4, kNodes = 6, kMostChunk = 24, kWindow = 20, kEncoder = 40;

struct Terrain {
  int32_t page_size;
  LayerKind other_kind;
  const GpuProblem* problem = nullptr;  // of a walk on a GPU alone
};
std::string name_of(const Terrain& terrain) {
  const std::string place = cat("page", terrain.page_size, "_", attn::to_string(terrain.other_kind));
  return terrain.problem ? cat(terrain.problem->name, "_", place) : place;
}
void PrintTo(const Terrain& terrain, std::ostream* out) { *out << name_of(terrain); }

Case case_of(const Terrain& terrain) {
  Case c{.page_size = terrain.page_size,
         .heads = 4,
         .kv_heads = 2,
         .key_dim = terrain.page_size % 32 == 0 ? 32 : 16,
         .lengths = std::vector<int32_t>(kMostRequests + 2, kContext),  // pages for all, and for copies of shared ones
         .captured = kBatch,
         .topk = kBranches,
         .draft_steps = kDraftSteps,
         .draft_tokens = kNodes,
         .threads = 2,
         .seed = static_cast<uint64_t>(terrain.page_size)};
  constexpr Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8e4m3, Dtype::f32};
  c.kv_type = kTypes[std::find(std::begin(kPageSizes), std::end(kPageSizes), c.page_size) - kPageSizes];
  if (terrain.other_kind == LayerKind::local)
    c.chunk = std::max(48, terrain.page_size) / terrain.page_size * terrain.page_size;
  if (terrain.other_kind == LayerKind::encoder) c.encoder.assign(c.lengths.size(), kEncoder);
  c.window_pool = terrain.other_kind == LayerKind::window;
  if (c.window_pool) c.window = kWindow;
  return terrain.problem ? terrain.problem->applied_to(c) : c;
}

// Requests with encoder keys have only the modes that have encoder layers.
std::vector<Mode> modes_of(const Terrain& terrain) {
  if (terrain.other_kind == LayerKind::encoder) return {Mode::decode, Mode::extend};
  return {Mode::decode, Mode::extend,      Mode::draft,       Mode::draft_tree,
          Mode::verify, Mode::verify_tree, Mode::draft_extend};
}

WorldSpec spec_of(const Terrain& terrain) {
  WorldSpec spec = case_of(terrain).world();
  spec.query_rows = kBatch * kMostChunk;
  if (has_gpu()) spec.place = Place::pinned;
  return spec;
}

// What has happened, so that a walk that never meets something fails.
struct Tally {
  std::map<Mode, int32_t> steps;
  std::map<GpuKernel, int32_t> kernels;  // that a step of the terrain's problem had to take
  int32_t arrived = 0, ended = 0, forked = 0, rolled_back = 0, compacted = 0, padded = 0, idle = 0, long_steps = 0,
          on_gpu = 0;
};

class Walk {
 public:
  explicit Walk(const Terrain& terrain)
      : terrain_(terrain), world_(spec_of(terrain)), random_(static_cast<uint64_t>(terrain.page_size) * 31 + 7) {
    if (!terrain.problem) {
      for (const Isa isa : available_isas())
        execs_.push_back(std::make_unique<Exec>(ExecOptions{.threads = 1, .isa = isa}));
      execs_.push_back(std::make_unique<Exec>(ExecOptions{.threads = 2}));
    }
    if (!has_gpu()) return;
    stream_.emplace();
    execs_.push_back(std::make_unique<Exec>(ExecOptions{.threads = 1, .stream = &*stream_}));
  }

  void step() {
    change_requests();
    const Step step = choose_step();
    count(step);
    Exec& exec = *execs_[below(std::ssize(execs_))];
    world_.lay_out(step, exec);
    world_.poison(Poison::guard);
    if (exec.stream())
      replay_captured(step, exec);
    else
      compute(step, exec);
    if (terrain_.problem)
      expect_dense(world_.result(), world_.expected(), kGpuTolerance);
    else
      expect_dense(world_.result(), world_.expected());
    commit(step, exec);
  }

  const Tally& tally() const { return tally_; }

 private:
  struct Request {
    int32_t committed;
    int32_t prompt;  // its length, until it is reached
    int32_t encoder;
    int32_t most;
    bool is_open = false;  // it has had a step
  };

  int32_t below(int64_t bound) { return static_cast<int32_t>(random_() % static_cast<uint64_t>(bound)); }
  bool one_in(int32_t n) { return below(n) == 0; }

  void compute(const Step& step, Exec& exec) {
    write_metadata(world_.shape(), world_.inputs(), world_.arena(), exec);
    if (step.mode == Mode::draft_tree) follow_chosen_parents(step, exec);
    attend(world_.args(), exec);
  }

  // On the GPU the metadata's writer is the first node of the step's graph, and every replay gives the same bits. A
  // second layer, which may read the metadata while the first one ends, writes over the first one's results.
  void replay_captured(const Step& step, Exec& exec) {
    Graph graph;
    AttendArgs second_layer = world_.args();
    second_layer.keys_are_settled = true;
    const Launches launches;
    exec.begin_capture(graph);
    compute(step, exec);
    attend(second_layer, exec);
    exec.end_capture();
    if (terrain_.problem) {
      const GpuKernel kernel = expected_kernel(case_of(terrain_).world().sizes, step);
      launches.expect_only(kernel, 2);
      ++tally_.kernels[kernel];
    }
    graph.replay(exec);
    exec.wait();
    const std::vector<std::byte> first = world_.result().out_bytes;
    graph.replay(exec);
    exec.wait();
    EXPECT_TRUE(world_.result().out_bytes == first) << "two replays differ";
    ++tally_.on_gpu;
  }

  void follow_chosen_parents(const Step& step, Exec& exec) {
    for (int32_t t = 0; t < step.draft_step; ++t)
      follow_parents(world_.shape(), world_.inputs(), world_.arena(), t, world_.draft_parents(t), exec);
  }

  void change_requests() {
    for (auto it = requests_.begin(); it != requests_.end();) {
      const auto& [id, request] = *it;
      const bool ends = request.committed > request.most || one_in(80);
      if (ends && request.is_open) world_.close(id);
      tally_.ended += ends;
      it = ends ? requests_.erase(it) : std::next(it);
    }
    if (std::ssize(requests_) < kMostRequests && one_in(3)) arrive();
    if (std::ssize(requests_) < kMostRequests && one_in(8)) fork();
    if (one_in(12)) roll_back();
  }

  // The world opens a request with its first step. At first and now and then a long one comes, whose prefix is already
  // known.
  void arrive() {
    const bool is_long = tally_.arrived == 0 || one_in(12);
    Request request{.committed = 0, .prompt = 1 + below(60), .encoder = 0, .most = kShort};
    if (is_long) request = {.committed = 0, .prompt = 560 + below(80), .encoder = 0, .most = kContext - kMostChunk};
    if (terrain_.other_kind == LayerKind::encoder) request.encoder = below(kEncoder + 1);
    requests_[next_id_++] = request;
    ++tally_.arrived;
  }

  // A committed request at random; the end when none was drawn.
  auto any_committed() {
    if (requests_.empty()) return requests_.end();
    const auto found = std::next(requests_.begin(), below(std::ssize(requests_)));
    return found->second.committed > 1 ? found : requests_.end();
  }

  void fork() {
    const auto parent = any_committed();
    if (parent == requests_.end()) return;
    Request child = parent->second;
    child.committed = 1 + below(child.committed);
    world_.fork(parent->first, next_id_, child.committed, *execs_[0]);
    requests_[next_id_++] = child;
    ++tally_.forked;
  }

  // Not with a window pool, whose pages before the window are gone.
  void roll_back() {
    const auto found = any_committed();
    if (found == requests_.end() || terrain_.other_kind == LayerKind::window) return;
    found->second.committed -= below(std::min(found->second.committed, 40));
    ++tally_.rolled_back;
  }

  Step choose_step() {
    const std::vector<Mode> modes = modes_of(terrain_);
    Step step{.mode = modes[below(std::ssize(modes))],
              .form = one_in(2) ? Form::in_place : Form::materialised,
              .draft_step = below(kDraftSteps - 1),
              .softcap = one_in(8) ? 20.0f : 0.0f,
              .sinks = one_in(8)};
    if (has_other_kind(step.mode) && one_in(2)) step.kind = terrain_.other_kind;
    if (step.kind == LayerKind::window) step.window = kWindow;
    // Layers without a pool of their own may have a window too.
    if (step.kind != LayerKind::encoder && step.kind != LayerKind::window && one_in(6)) step.window = below(70);
    for (auto& [id, request] : requests_)
      if (!one_in(4) && may_take_part(step.mode, request)) step.sequences.push_back(sequence_of(step, id, request));
    std::shuffle(step.sequences.begin(), step.sequences.end(), random_);
    step.captured = std::min<int32_t>(kBatch, static_cast<int32_t>(step.sequences.size()) + below(4));
    step.captured = std::max(1, step.captured);
    return step;
  }

  bool has_other_kind(Mode mode) const {
    if (terrain_.other_kind == LayerKind::window) return mode != Mode::draft_tree;
    return mode == Mode::decode || mode == Mode::extend;
  }

  static bool may_take_part(Mode mode, const Request& request) {
    return mode == Mode::extend || mode == Mode::draft_extend || request.committed >= request.prompt;
  }

  Sequence sequence_of(const Step& step, int32_t id, const Request& request) {
    const Mode mode = step.mode;
    Sequence sequence{.request = id, .length = request.committed, .encoder = request.encoder};
    if (mode == Mode::decode) sequence.length += 1;
    if (mode == Mode::extend || mode == Mode::draft_extend) {
      const int32_t missing = request.prompt - request.committed;
      // Of a long prompt only the end is computed here: its beginning was a prefix that is known.
      if (missing > kShort) sequence.length = request.prompt - kMostChunk;
      const int32_t most = missing > 0 ? std::min(request.prompt - sequence.length, kMostChunk) : 12;
      sequence.extend = 1 + below(most);
      sequence.length += sequence.extend;
    }
    if (mode == Mode::verify_tree) sequence.parents = random_parents(kNodes, random_);
    if (mode == Mode::draft_tree)
      for (int32_t t = 0; t < step.draft_step; ++t) {
        std::vector<int32_t>& parents = sequence.draft_parents.emplace_back();
        for (int32_t branch = 0; branch < kBranches; ++branch) parents.push_back(below(kBranches));
      }
    return sequence;
  }

  static int32_t main_line(const Sequence& sequence) {
    int32_t nodes = 0;
    for (int32_t node = 0; node < kNodes; ++node) nodes += node_token(sequence, node).variant == 0;
    return nodes;
  }

  void commit(const Step& step, Exec& exec) {
    for (const Sequence& sequence : step.sequences) {
      requests_.at(sequence.request).is_open = true;
      int32_t& committed = requests_.at(sequence.request).committed;
      switch (step.mode) {
        case Mode::decode:
        case Mode::extend:
        case Mode::draft_extend:
          committed = sequence.length;
          break;
        case Mode::verify:
          committed += below(kNodes + 1);
          break;
        case Mode::verify_tree: {
          const int32_t accepted = below(main_line(sequence) + 1);
          world_.accept(sequence.request, accepted, exec);
          committed += accepted;
          tally_.compacted += accepted > 0;
          break;
        }
        default:
          break;
      }
    }
  }

  void count(const Step& step) {
    ++tally_.steps[step.mode];
    const auto live = static_cast<int32_t>(step.sequences.size());
    tally_.idle += live == 0;
    tally_.padded += step.captured > live;
    tally_.long_steps += std::any_of(step.sequences.begin(), step.sequences.end(),
                                     [](const Sequence& sequence) { return sequence.length > 512; });
  }

  Terrain terrain_;
  World world_;
  std::mt19937_64 random_;
  std::optional<quire::cuda::Stream> stream_;
  std::vector<std::unique_ptr<Exec>> execs_;  // each instruction set alone, the best with two threads, the GPU
  std::map<int32_t, Request> requests_;
  int32_t next_id_ = 0;
  Tally tally_;
};

class RandomWalk : public ::testing::TestWithParam<Terrain> {};

TEST_P(RandomWalk, EveryStepIsRight) {
  Walk walk(GetParam());
  int32_t steps = 0;
  for (; steps < kSteps && !HasFailure(); ++steps) {
    SCOPED_TRACE(cat("step ", steps));
    walk.step();
  }
  const Tally& tally = walk.tally();
  std::printf(
      "%d steps: %d requests arrived, %d ended, %d forked, %d rolled back, %d paths compacted, %d steps padded, "
      "%d idle, %d long, %d on a GPU\n",
      steps, tally.arrived, tally.ended, tally.forked, tally.rolled_back, tally.compacted, tally.padded, tally.idle,
      tally.long_steps, tally.on_gpu);
  EXPECT_EQ(steps, kSteps);
  EXPECT_EQ(tally.on_gpu > 0, has_gpu());
  EXPECT_LT(tally.idle, kSteps / 4);
  const std::vector<Mode> modes = modes_of(GetParam());
  EXPECT_EQ(tally.steps.size(), modes.size());
  for (const auto& [mode, count] : tally.steps) EXPECT_GT(count, kSteps / 20) << attn::to_string(mode);
  for (const int32_t met : {tally.arrived, tally.ended, tally.forked, tally.padded, tally.long_steps})
    EXPECT_GT(met, 0);
  EXPECT_EQ(tally.compacted > 0, modes.size() > 2);
  EXPECT_EQ(tally.rolled_back > 0, GetParam().other_kind != LayerKind::window);
}

std::vector<Terrain> every_terrain() {
  std::vector<Terrain> terrains;
  for (const int32_t page_size : kPageSizes)
    for (const LayerKind kind : kOtherKinds) terrains.push_back({page_size, kind});
  return terrains;
}

INSTANTIATE_TEST_SUITE_P(Terrains, RandomWalk, ::testing::ValuesIn(every_terrain()),
                         [](const auto& test) { return name_of(test.param); });

// --- on a GPU, through the kernels that it has for the problems of real models

constexpr int32_t kGpuSteps = 100;

class RandomWalkOfProblems : public ::testing::TestWithParam<GpuProblem> {
 protected:
  static void expect_right(const Terrain& terrain) {
    SCOPED_TRACE(name_of(terrain));
    Walk walk(terrain);
    for (int32_t step = 0; step < kGpuSteps && !HasFailure(); ++step) {
      SCOPED_TRACE(cat("step ", step));
      walk.step();
    }
    const Tally& tally = walk.tally();
    std::string kernels;
    for (const auto& [kernel, steps] : tally.kernels) kernels += cat(", ", to_string(kernel), " ", steps);
    std::printf("%s: %d steps, %d long%s\n", name_of(terrain).c_str(), tally.on_gpu, tally.long_steps, kernels.c_str());
    EXPECT_EQ(tally.on_gpu, kGpuSteps);
    for (const GpuKernel kernel : own_kernels(*terrain.problem)) {
      const auto found = tally.kernels.find(kernel);
      EXPECT_GT(found == tally.kernels.end() ? 0 : found->second, kGpuSteps / 10) << to_string(kernel);
    }
  }

  static std::vector<GpuKernel> own_kernels(const GpuProblem& problem) {
    if (problem.is_latent) return {GpuKernel::latent};
    if (problem.key_dim > 128) return {GpuKernel::prefill};
    const bool is_narrow = problem.kv_type == Dtype::f8e4m3;
    return {is_narrow ? GpuKernel::decode : GpuKernel::decode_cluster, GpuKernel::prefill};
  }
};

// Each on two grounds; the problems together have all page sizes and kinds.
TEST_P(RandomWalkOfProblems, EveryStepIsRight) {
  if (!has_gpu()) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  size_t turn = 2 * (std::ranges::find(kGpuProblems, std::string(GetParam().name), &GpuProblem::name) - kGpuProblems);
  for (const size_t end = turn + 2; turn < end; ++turn)
    expect_right({kPageSizes[turn % std::size(kPageSizes)], kOtherKinds[turn % std::size(kOtherKinds)], &GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Problems, RandomWalkOfProblems, ::testing::ValuesIn(kGpuProblems),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::attn::testing
