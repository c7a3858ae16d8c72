#include "attn/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "attn/step_upload.h"
#include "base/testing/expect_refused.h"

namespace quire::attn {
namespace {

constexpr int32_t kRows = 4, kPoolPages = 40;

// Two live requests in a step that is right, to be spoiled one thing at a time.
class CheckStep : public ::testing::Test {
 protected:
  CheckStep() {
    inputs.live() = 2;
    for (int32_t b = 0; b < 2; ++b) {
      inputs.rows()[b] = {b + 1};
      inputs.lengths()[b] = {20 + b};
      inputs.extend_lengths()[b] = {3};
      inputs.encoder_lengths()[b] = {10};
    }
    for (int32_t i = 0; i < 2 * 2 * 3; ++i) inputs.draft_slots()[i] = {100 + i};
    for (int32_t row = 0; row < 2 * 4; ++row)
      for (int32_t j = 0; j < 4; ++j) inputs.tree_mask()[row * 4 + j] = j <= row % 4;
    for (int32_t i = 0; i < kRows * width; ++i) pages[i] = window_pages[i] = {1 + i};
  }

  StepShape shape(Mode mode) const {
    StepShape made{.mode = mode, .captured = 3, .query_rows = 24, .table = table};
    made.table.pages = pages.data();
    return made;
  }
  void accepts(const StepShape& step) const {
    EXPECT_NO_THROW(check_step(step, inputs.inputs(), limits));
    EXPECT_NO_THROW(check_pages(step, inputs.inputs(), limits));
  }
  void refuses(const StepShape& step, const std::string& part) const {
    const auto run = [&] { check_step(step, inputs.inputs(), limits); };
    expect_refused(run, part);
    expect_refused(run, to_string(step.mode));
  }
  void refuses_pages(const StepShape& step, const std::string& part) const {
    EXPECT_NO_THROW(check_step(step, inputs.inputs(), limits));
    expect_refused([&] { check_pages(step, inputs.inputs(), limits); }, part);
  }

  static constexpr int32_t width = 6;
  Limits limits{.batch = 4,
                .context = 64,
                .page_size = PageSize(16),
                .topk = 2,
                .draft_steps = 3,
                .draft_tokens = 4,
                .chunk = 32,
                .encoder_context = 30};
  StepInputBuffers inputs{limits};
  std::vector<PageId> pages = std::vector<PageId>(kRows * width), window_pages = pages;
  kv::TableView table{.pages = pages.data(),
                      .stride = width,
                      .rows = kRows,
                      .width = width,
                      .page_size = PageSize(16),
                      .pool_pages = kPoolPages};
  kv::TableView window{.pages = window_pages.data(),
                       .stride = width,
                       .rows = kRows,
                       .width = width,
                       .page_size = PageSize(16),
                       .pool_pages = kPoolPages};
};

constexpr Mode kAllModes[] = {Mode::decode, Mode::extend,      Mode::draft,       Mode::draft_tree,
                              Mode::verify, Mode::verify_tree, Mode::draft_extend};

TEST_F(CheckStep, RightStepsPass) {
  for (const Mode mode : kAllModes) accepts(shape(mode));
  for (const Mode mode : {Mode::decode, Mode::extend}) {
    StepShape step = shape(mode);
    step.local = true;
    accepts(step);
    step.local = false;
    step.encoder = true;
    accepts(step);
  }
  inputs.live() = 0;
  for (const Mode mode : kAllModes) accepts(shape(mode));
}

TEST_F(CheckStep, Counts) {
  for (const Mode mode : kAllModes) {
    StepShape step = shape(mode);
    step.captured = 5;
    refuses(step, "captured batch 5 is not between 1 and the limit 4");
    step.captured = 0;
    refuses(step, "captured batch 0");
    step.captured = 1;
    refuses(step, "live count 2 is above the captured batch 1");
    inputs.live() = -1;
    refuses(shape(mode), "live count -1 is negative");
    inputs.live() = 2;
  }
}

// What was recorded for short sequences is not replayed for longer ones.
TEST_F(CheckStep, ContextOfTheShape) {
  for (const Mode mode : kAllModes) {
    StepShape step = shape(mode);
    step.context = 21;
    accepts(step);
    step.context = 20;
    refuses(step, "request 1: lengths[1] = 21 is past the shape's context of 20");
    step.context = 65;
    refuses(step, "a context of 65 is not between 0 and the limit 64");
    step.context = -1;
    refuses(step, "a context of -1 is not between 0 and the limit 64");
  }
}

TEST_F(CheckStep, Lengths) {
  for (const Mode mode : kAllModes) {
    inputs.lengths()[1] = {65};
    refuses(shape(mode), "request 1: lengths[1] = 65 is past the context of 64");
    inputs.lengths()[1] = {-1};
    refuses(shape(mode), "request 1: lengths[1] = -1 is below");
    inputs.lengths()[1] = {21};
  }
  inputs.lengths()[0] = {0};
  for (const Mode mode : {Mode::decode, Mode::extend, Mode::draft_extend})
    refuses(shape(mode), "request 0: lengths[0] = 0 is below 1");
  for (const Mode mode : {Mode::draft, Mode::draft_tree, Mode::verify, Mode::verify_tree}) accepts(shape(mode));
}

TEST_F(CheckStep, ExtendLengths) {
  for (const Mode mode : {Mode::extend, Mode::draft_extend}) {
    inputs.extend_lengths()[1] = {0};
    refuses(shape(mode), "request 1: extend_lengths[1] = 0 is below 1");
    inputs.extend_lengths()[1] = {22};
    refuses(shape(mode), "request 1: extend_lengths[1] = 22 is above lengths[1] = 21");
    inputs.extend_lengths()[1] = {21};
    accepts(shape(mode));
  }
}

TEST_F(CheckStep, Rows) {
  for (const int32_t row : {-1, kRows}) {
    inputs.rows()[1] = {row};
    refuses(shape(Mode::decode),
            cat("request 1: request_rows[1] = ", row, " is not a row of the request table, which has 4"));
  }
  inputs.rows()[1] = {0};
  for (const Mode mode : kAllModes)
    refuses(shape(mode), "request 1: request_rows[1] = 0 is the reserved row of the request table");
}

// What a recorded step's q and out have room for; kernels would write the other rows past their end.
TEST_F(CheckStep, QueryRows) {
  const auto rows_of_two = [](Mode mode) {
    switch (mode) {
      case Mode::decode:
      case Mode::draft:
        return 2;
      case Mode::draft_tree:
        return 2 * 2;
      case Mode::verify:
      case Mode::verify_tree:
        return 2 * 4;
      default:
        return 3 + 3;
    }
  };
  for (const Mode mode : kAllModes) {
    StepShape step = shape(mode);
    step.query_rows = rows_of_two(mode);
    accepts(step);
    step.query_rows -= 1;
    refuses(step, cat("its requests have ", rows_of_two(mode), " query rows, the shape has room for ",
                      rows_of_two(mode) - 1));
    inputs.live() = 0;
    step.query_rows = 0;
    accepts(step);
    inputs.live() = 2;
  }
}

TEST_F(CheckStep, TheForm) {
  StepShape step = shape(Mode::decode);
  step.form = Form::materialised;
  refuses(step, "the limits are for steps in place, without tables");
  limits.form = Form::materialised;
  accepts(step);
}

TEST_F(CheckStep, TheTableMustBeWideEnough) {
  table.width = 4;
  inputs.lengths()[1] = {64};
  accepts(shape(Mode::decode));
  accepts(shape(Mode::draft_tree));  // its drafts have slots of their own
  for (const Mode mode : {Mode::draft, Mode::verify, Mode::verify_tree})
    refuses(shape(mode), "request 1: lengths[1] = 64 needs 5 pages, a row of the request table has 4");
  StepShape step = shape(Mode::decode);
  step.encoder = true;
  refuses(step, "lengths[1] = 64 needs 5 pages");  // the encoder's page comes first
}

TEST_F(CheckStep, TheWindowTableIsCheckedToo) {
  StepShape step = shape(Mode::verify);
  step.window_table = window;
  accepts(step);
  step.window_table->rows = 2;
  refuses(step, "request 1: request_rows[1] = 2 is not a row of the window table");
  step.window_table->rows = kRows;
  step.window_table->width = 1;
  refuses(step, "a row of the window table has 1");
  step.window_table->width = width;
  step.window_table->page_size = PageSize(32);
  refuses(step, "the window table has pages of 32 tokens");
}

TEST_F(CheckStep, TheTableMustHaveTheLimitsPages) {
  table.page_size = PageSize(1);
  refuses(shape(Mode::decode), "the request table has pages of 1 tokens, the limits have pages of 16");
  StepShape step = shape(Mode::decode);
  step.table.page_size = PageSize(16);
  step.table.pages = nullptr;
  refuses(step, "the request table has no memory");
}

TEST_F(CheckStep, DraftSlots) {
  for (const int32_t slot : {-1, kPoolPages * 16}) {
    inputs.draft_slots()[7] = {slot};
    refuses(shape(Mode::draft_tree), cat("request 1: draft_slots[7] = ", slot, " is outside the pool of 640 slots"));
  }
  inputs.draft_slots()[7] = {15};
  refuses_pages(shape(Mode::draft_tree), "request 1: draft_slots[7] = 15 lies in the reserved page");
}

TEST_F(CheckStep, TreeMask) {
  inputs.tree_mask()[6 * 4 + 2] = 0;
  refuses(shape(Mode::verify_tree), "request 1: tree_mask[6][2] = 0: node 2 does not see itself");
  inputs.tree_mask()[6 * 4 + 2] = 2;
  refuses(shape(Mode::verify_tree), "request 1: tree_mask[6][2] = 2 is neither 0 nor 1");
}

TEST_F(CheckStep, LocalLayers) {
  for (const Mode mode : {Mode::draft, Mode::draft_tree, Mode::verify, Mode::verify_tree, Mode::draft_extend}) {
    StepShape step = shape(mode);
    step.local = true;
    refuses(step, "local layers are for decode and extend");
  }
  StepShape step = shape(Mode::decode);
  step.local = step.encoder = true;
  refuses(step, "exclude each other");
  step.encoder = false;
  limits.chunk = 0;
  refuses(step, "the limits have no chunk");
}

TEST_F(CheckStep, EncoderLayers) {
  for (const Mode mode : {Mode::draft, Mode::draft_tree, Mode::verify, Mode::verify_tree, Mode::draft_extend}) {
    StepShape step = shape(mode);
    step.encoder = true;
    refuses(step, "encoder layers are for decode and extend");
  }
  StepShape step = shape(Mode::decode);
  step.encoder = true;
  inputs.encoder_lengths()[1] = {31};
  refuses(step, "request 1: encoder_lengths[1] = 31 is past the encoder context of 30");
  inputs.encoder_lengths()[1] = {-1};
  refuses(step, "request 1: encoder_lengths[1] = -1 is below 0");
  limits.encoder_context = 0;
  refuses(step, "the limits have no encoder context");
}

TEST_F(CheckStep, AWindowPoolHasNoDraftTree) {
  StepShape step = shape(Mode::draft_tree);
  step.window_table = window;
  refuses(step, "no place for the slots of a draft tree");
}

TEST_F(CheckStep, DraftStepsAndDraftTokens) {
  for (const Mode mode : {Mode::draft, Mode::draft_tree}) {
    StepShape step = shape(mode);
    for (const int32_t i : {-1, 2}) {
      step.draft_step = i;
      refuses(step, cat("draft step ", i, " is not below 2"));
    }
  }
  limits.draft_steps = 0;
  for (const Mode mode : {Mode::draft, Mode::draft_tree}) refuses(shape(mode), "the limits have no draft steps");
  limits.draft_tokens = 0;
  for (const Mode mode : {Mode::verify, Mode::verify_tree}) refuses(shape(mode), "the limits have no draft tokens");
}

TEST_F(CheckStep, RaggedTrees) {
  StepShape step = shape(Mode::verify_tree);
  step.ragged = true;
  for (const int32_t nodes : {1, 3}) {
    inputs.extend_lengths()[0] = {nodes};
    inputs.extend_lengths()[1] = {2};
    std::fill_n(inputs.tree_mask(), 4 * 8, uint8_t{2});  // past a request's own nodes nothing is read
    for (int32_t row = 0; row < nodes + 2; ++row) {
      const int32_t own = row < nodes ? nodes : 2, q = row < nodes ? row : row - nodes;
      for (int32_t j = 0; j < own; ++j) inputs.tree_mask()[row * 4 + j] = j <= q;
    }
    accepts(step);
    inputs.tree_mask()[nodes * 4] = 0;
    refuses(step, cat("request 1: tree_mask[", nodes, "][0] = 0: node 0 does not see itself"));
  }
  inputs.extend_lengths()[0] = {5};
  refuses(step, "request 0: extend_lengths[0] = 5 nodes, the limits have 4");
  inputs.extend_lengths()[0] = {0};
  refuses(step, "request 0: extend_lengths[0] = 0 is below 1");
  step.mode = Mode::verify;
  refuses(step, "only trees are ragged");
  step.mode = Mode::verify_tree;
  limits.form = step.form = Form::materialised;
  refuses(step, "trees are ragged in place");
}

// A step of nobody brings changes too. Without room for them nobody reads the count.
TEST_F(CheckStep, TheJournalsRuns) {
  inputs.journal_count() = 1 << 30;
  accepts(shape(Mode::decode));
  limits.journal_pages = 5;
  const StepInputBuffers mirrored(limits);
  mirrored.live() = 0;
  const auto refused = [&](const kv::PageRun& run, const std::string& part) {
    mirrored.journal_runs()[1] = run;
    expect_refused([&] { check_step(shape(Mode::decode), mirrored.inputs(), limits); }, part);
  };
  for (const int32_t count : {-1, 5}) {
    mirrored.journal_count() = count;
    refused({}, cat("decode step: journal_count is ", count, ", the limits allow 4"));
  }
  mirrored.journal_count() = 2;
  mirrored.journal_runs()[0] = mirrored.journal_runs()[1] = {.row = {3}, .first = 1, .count = 5, .begin = 0};
  EXPECT_NO_THROW(check_step(shape(Mode::decode), mirrored.inputs(), limits));
  for (const int32_t row : {-1, 0, kRows})
    refused({.row = {row}, .first = 0, .count = 1, .begin = 0}, cat("journal_runs[1] is of row ", row));
  refused({.row = {1}, .first = 2, .count = 5, .begin = 0}, "journal_runs[1] has 5 entries from 2");
  refused({.row = {1}, .first = -1, .count = 1, .begin = 0}, "journal_runs[1] has 1 entries from -1");
  refused({.row = {1}, .first = 0, .count = -1, .begin = 0}, "journal_runs[1] has -1 entries from 0");
  refused({.row = {1}, .first = 0, .count = 2, .begin = 4}, "journal_runs[1] has 2 pages from 4, the limits allow 5");
  refused({.row = {1}, .first = 0, .count = 2, .begin = -1}, "journal_runs[1] has 2 pages from -1");
}

TEST_F(CheckStep, InputsThatTheModeNeedsMustBeGiven) {
  const auto refused_without = [&](Mode mode, const std::function<void(StepInputs&)>& take, const std::string& part) {
    StepInputs given = inputs.inputs();
    take(given);
    StepShape step = shape(mode);
    step.encoder = mode == Mode::decode;
    expect_refused([&] { check_step(step, given, limits); }, part);
  };
  refused_without(
      Mode::verify, [](StepInputs& in) { in.live = nullptr; }, "no live count");
  refused_without(
      Mode::verify, [](StepInputs& in) { in.rows = nullptr; }, "no request_rows");
  refused_without(
      Mode::verify, [](StepInputs& in) { in.lengths = nullptr; }, "no lengths");
  refused_without(
      Mode::extend, [](StepInputs& in) { in.extend_lengths = nullptr; }, "no extend_lengths");
  refused_without(
      Mode::draft_tree, [](StepInputs& in) { in.draft_slots = nullptr; }, "no draft_slots");
  refused_without(
      Mode::verify_tree, [](StepInputs& in) { in.tree_mask = nullptr; }, "no tree_mask");
  refused_without(
      Mode::decode, [](StepInputs& in) { in.encoder_lengths = nullptr; }, "no encoder_lengths");
}

TEST_F(CheckStep, PagesOutsideThePool) {
  for (const int32_t page : {-1, kPoolPages}) {
    pages[2 * width + 1] = {page};
    refuses_pages(shape(Mode::decode),
                  cat("request 1: page 1 of row 2 of the request table is ", page, ", outside the pool of 40"));
  }
  pages[2 * width + 1] = {0};
  refuses_pages(shape(Mode::decode), "request 1: page 1 of row 2 of the request table is the reserved page");
  inputs.lengths()[1] = {16};
  accepts(shape(Mode::decode));  // nothing reads page 1 of a request of 16 tokens
  refuses_pages(shape(Mode::verify), "page 1 of row 2");
}

TEST_F(CheckStep, PagesMayLeaveTheWindowFromTheFrontOnly) {
  StepShape step = shape(Mode::decode);
  step.window_table = window;
  inputs.lengths()[1] = {64};
  window_pages[2 * width] = window_pages[2 * width + 1] = kv::kReservedPage;
  accepts(step);
  window_pages[2 * width + 3] = kv::kReservedPage;
  refuses_pages(step, "page 3 of row 2 of the window table is the reserved page");
  window_pages[2 * width + 2] = kv::kReservedPage;
  refuses_pages(step, "page 3 of row 2 of the window table is the reserved page");
  window_pages[2 * width + 2] = {kPoolPages};
  refuses_pages(step, "outside the pool of 40");
}

TEST_F(CheckStep, ReadableElementsOfBothForms) {
  StepShape step = shape(Mode::draft);
  const auto count = [&](Buf id, int64_t row, int32_t plane) {
    return readable(spec(id), step, inputs.inputs(), limits, row, plane);
  };
  // in place: the live rows, and nothing of the tables
  EXPECT_EQ(count(Buf::decode_live_count, 0, -1), 1);
  EXPECT_EQ(count(Buf::decode_cache_seqlens, 1, -1), 2);
  EXPECT_EQ(count(Buf::decode_cache_seqlens, 1, 0), 0);
  EXPECT_EQ(count(Buf::decode_cache_seqlens, 2, -1), 0);  // there are two draft steps
  EXPECT_EQ(count(Buf::decode_cu_seqlens_q, 0, -1), 3);
  EXPECT_EQ(count(Buf::decode_cu_items, 1, 1), 3);
  EXPECT_EQ(count(Buf::decode_cu_seqlens_k, 0, -1), 0);
  EXPECT_EQ(count(Buf::decode_page_table_draft_decode, 0, -1), 0);
  EXPECT_EQ(count(Buf::verify_cache_seqlens, 0, -1), 0);
  EXPECT_EQ(count(Buf::work_partial_max, 0, -1), 0);
  // materialised: padding too
  step.form = Form::materialised;
  inputs.lengths()[0] = {31};
  EXPECT_EQ(count(Buf::decode_cache_seqlens, 1, -1), 3);
  EXPECT_EQ(count(Buf::decode_cu_seqlens_k, 0, -1), 4);
  EXPECT_EQ(count(Buf::decode_cu_items, 0, -1), 3);
  EXPECT_EQ(count(Buf::decode_page_table_draft_decode, 0, 0), 2);   // 32 keys
  EXPECT_EQ(count(Buf::decode_page_table_draft_decode, 0, -1), 3);  // 33 keys in the last draft step
  EXPECT_EQ(count(Buf::decode_page_table_draft_decode, 2, -1), 1);  // padding
  EXPECT_EQ(count(Buf::decode_page_table_draft_decode, 3, -1), 0);
  EXPECT_EQ(count(Buf::decode_page_table, 0, -1), 0);
}

// A CPU's kernels read how the work is cut, a GPU's the counters of its blocks, of live requests in either form.
TEST_F(CheckStep, ReadableElementsOfBothDevices) {
  for (const Form form : {Form::in_place, Form::materialised}) {
    StepShape step = shape(Mode::decode);
    step.form = form;
    const auto count = [&](Buf id, int64_t row) { return readable(spec(id), step, inputs.inputs(), limits, row); };
    limits.device = Device::cpu;
    EXPECT_EQ(count(Buf::decode_cu_items, 0), 3);
    EXPECT_EQ(count(Buf::split_arrivals, 0), 0);
    EXPECT_EQ(count(Buf::split_next_tile, 0), 0);
    limits.device = Device::cuda;
    EXPECT_EQ(count(Buf::decode_cu_items, 0), 0);
    EXPECT_EQ(count(Buf::decode_cache_seqlens, 0), form == Form::in_place ? 2 : 3);
    EXPECT_EQ(count(Buf::split_arrivals, 0), kMostSplitBlocks);
    EXPECT_EQ(count(Buf::split_arrivals, 1), 0);
    EXPECT_EQ(count(Buf::split_next_tile, 0), 1);
    EXPECT_EQ(count(Buf::split_partial_out, 0), 0);
  }
}

TEST(StepWords, HaveNames) {
  EXPECT_STREQ(to_string(Mode::verify_tree), "verify_tree");
  EXPECT_STREQ(to_string(LayerKind::encoder), "encoder");
}

TEST(StepInputBuffers, ArraysOfTheLimitsDoNotOverlap) {
  const Limits l{.batch = 3,
                 .context = 8,
                 .page_size = PageSize(1),
                 .topk = 2,
                 .draft_steps = 3,
                 .draft_tokens = 5,
                 .query_rows = 7,
                 .wanted_rows = 4,
                 .journal_pages = 11};
  const StepInputBuffers inputs(l);
  std::vector<std::span<const std::byte>> all;
#define ONE(type, name) all.push_back(std::as_bytes(std::span(inputs.inputs().name, 1)));
#define MANY(type, name, elements) \
  all.push_back(std::as_bytes(std::span(inputs.inputs().name, static_cast<size_t>(elements))));
  QUIRE_STEP_INPUTS(ONE, MANY)
#undef ONE
#undef MANY
  std::ranges::sort(all, {}, [](const auto& array) { return array.data(); });
  const std::byte* end = inputs.memory().data();
  for (const auto& array : all) {
    EXPECT_FALSE(array.empty());
    EXPECT_GE(array.data(), end);
    end = array.data() + array.size();
  }
  EXPECT_LE(end, inputs.memory().data() + inputs.memory().size());
}

TEST(StepInputBuffers, WhoHasNoModelAndNoMirrorPaysForNeither) {
  Limits limits{.batch = 64, .context = 8, .page_size = PageSize(1)};
  const size_t alone = StepInputBuffers(limits).memory().size();
  EXPECT_LE(alone, 5 * 64 * sizeof(int32_t));
  limits.query_rows = 100;
  limits.wanted_rows = 10;
  EXPECT_GE(StepInputBuffers(limits).memory().size(), alone + 310 * sizeof(int32_t));
  limits.wanted_rows = 101;
  expect_refused([&] { StepInputBuffers{limits}; }, "wanted rows 101 is not between 0 and 100");
}

// --- a model's rows

class CheckModelRows : public CheckStep {
 protected:
  CheckModelRows() {
    limits.query_rows = 8;
    limits.wanted_rows = 3;
    with_model = StepInputBuffers(limits);
    with_model.live() = 2;
    for (int32_t b = 0; b < 2; ++b) {
      with_model.rows()[b] = {b + 1};
      with_model.lengths()[b] = {20 + b};
      with_model.extend_lengths()[b] = {3};
    }
    with_model.query_rows() = 6;
    for (int32_t i = 0; i < 6; ++i) with_model.slot_mapping()[i] = {kPoolPages * 16 - 1 - i};
    with_model.wanted_count() = 3;
    with_model.logits_count() = 2;
    for (int32_t i = 0; i < 3; ++i) with_model.wanted_rows()[i] = 5 - i;
  }
  void refuses(const std::string& part) const {
    expect_refused([&] { check_step(shape(Mode::extend), with_model.inputs(), limits); }, part);
  }

  StepInputBuffers with_model{limits};
};

TEST_F(CheckModelRows, AreThoseOfTheRequests) {
  EXPECT_NO_THROW(check_step(shape(Mode::extend), with_model.inputs(), limits));
  with_model.query_rows() = 5;
  refuses("query_rows is 5, its requests have 6");
  with_model.extend_lengths()[0] = {6};
  refuses("its requests have 9 query rows, the limits allow 8");
  with_model.live() = 0;
  refuses("query_rows is 5, its requests have 0");
  with_model.query_rows() = 0;
  refuses("wanted_rows[0] = 5 is none of 0 query rows");
  with_model.wanted_count() = with_model.logits_count() = 0;
  EXPECT_NO_THROW(check_step(shape(Mode::extend), with_model.inputs(), limits));
}

TEST_F(CheckModelRows, HaveSlotsInThePool) {
  for (const int32_t slot : {-1, kPoolPages * 16}) {
    with_model.slot_mapping()[5] = {slot};
    refuses(cat("slot_mapping[5] = ", slot, " is outside the pool of 640 slots"));
  }
}

TEST_F(CheckModelRows, ThatAreWantedAreCountedAndAmongThem) {
  for (const int32_t row : {-1, 6}) {
    with_model.wanted_rows()[2] = row;
    refuses(cat("wanted_rows[2] = ", row, " is none of 6 query rows"));
  }
  with_model.wanted_rows()[2] = 0;
  for (const int32_t logits : {-1, 4}) {
    with_model.logits_count() = logits;
    refuses(cat("logits_count is ", logits, ", of 3 wanted rows"));
  }
  for (const int32_t wanted : {-1, 4}) {
    with_model.wanted_count() = wanted;
    refuses(cat("wanted_count is ", wanted, ", the limits allow 3"));
  }
}

// --- the ring on a CPU

TEST(StepUpload, OnACpuIsOneCopyThatIsReadWhereItWasFilled) {
  Exec team({.threads = 1});
  const Limits limits{.batch = 2, .context = 16, .page_size = PageSize(16)};
  StepUpload upload(limits, 3, team);
  const StepInputs inputs = upload.inputs();
  EXPECT_EQ(inputs.source.count, 0u);
  for (uint32_t step = 1; step < 6; ++step) {
    upload.next().lengths()[1] = {static_cast<int32_t>(step)};
    upload.send();
    EXPECT_EQ(inputs.lengths[1], TokenCount{static_cast<int32_t>(step)});
    EXPECT_EQ(*inputs.number, step);
  }
  expect_refused([&] { StepUpload(limits, 0, team); }, "a ring of 0 copies");
  expect_refused([&] { StepUpload(limits, 4, team); }, "a ring of 4 copies of a step's inputs, below 4");
}

}  // namespace
}  // namespace quire::attn
