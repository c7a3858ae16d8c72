#include "attn/metadata.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "attn/cpu_choice.h"
#include "base/check.h"

namespace quire::attn {

constinit const std::array<BufferSpec, kBufferCount> kBuffers{{
// clang-format off
#define X(set, name, element, role, on, rows, columns)                            \
  {Buf::set##_##name, Set::set, #name, Element::element, Role::role, On::on,      \
   [](const Limits& l) -> Shape { return (void)l, Shape{rows, columns}; }},
    // clang-format on
    QUIRE_METADATA(X)
#undef X
}};

// Names in the order of the enumerations.
const char* to_string(Set set) {
  constexpr const char* kNames[] = {"decode",
                                    "local",
                                    "draft.prefix",
                                    "draft.branch",
                                    "verify",
                                    "verify_tree.prefix",
                                    "verify_tree.branch",
                                    "encoder",
                                    "extend",
                                    "draft_extend",
                                    "window",
                                    "work",
                                    "split"};
  static_assert(std::size(kNames) == static_cast<size_t>(Set::split) + 1);
  return kNames[static_cast<size_t>(set)];
}

const char* to_string(Element element) {
  constexpr const char* kNames[] = {"count", "page", "slot", "row", "f32"};
  static_assert(std::size(kNames) == static_cast<size_t>(Element::f32) + 1);
  return kNames[static_cast<size_t>(element)];
}

const char* to_string(Role role) {
  constexpr const char* kNames[] = {"step", "table", "kernel"};
  static_assert(std::size(kNames) == static_cast<size_t>(Role::kernel) + 1);
  return kNames[static_cast<size_t>(role)];
}

const char* to_string(On on) {
  constexpr const char* kNames[] = {"any", "cpu", "cuda"};
  static_assert(std::size(kNames) == static_cast<size_t>(On::cuda) + 1);
  return kNames[static_cast<size_t>(on)];
}

const char* to_string(Form form) { return form == Form::in_place ? "in_place" : "materialised"; }

std::string to_string(Buf id) { return cat(to_string(spec(id).set), ".", spec(id).name); }

bool is_read_on(const BufferSpec& buffer, Device device) {
  return buffer.on == On::any || (buffer.on == On::cuda) == (device == Device::cuda);
}

bool is_held(const BufferSpec& buffer, const Limits& limits) {
  return is_read_on(buffer, limits.device) && (buffer.role != Role::table || limits.form == Form::materialised);
}

// Verification at the very end of the context still needs room for its drafts.
int32_t Limits::text_tokens() const { return context + (draft_tokens > draft_steps ? draft_tokens : draft_steps); }

std::string to_string(const Limits& limits) {
  return cat("batch ", limits.batch, ", context ", limits.context, ", page size ", limits.page_size.tokens(), ", topk ",
             limits.topk, ", draft steps ", limits.draft_steps, ", draft tokens ", limits.draft_tokens, ", chunk ",
             limits.chunk, ", encoder context ", limits.encoder_context, ", heads ", limits.heads, ", kv heads ",
             limits.kv_heads, ", key dim ", limits.key_dim, ", value dim ", limits.value_dim, ", threads ",
             limits.threads, ", query rows ", limits.query_rows, ", wanted rows ", limits.wanted_rows,
             ", journal pages ", limits.journal_pages, ", on ", to_string(limits.device), ", ", to_string(limits.form));
}

namespace {

void check_range(const Limits& limits, const char* name, int32_t value, int32_t least, int32_t most) {
  check(value >= least && value <= most, name, " ", value, " is not between ", least, " and ", most,
        ", in the limits: ", limits);
}

// Prefix sums and row indices are 32 bits wide, so what a whole batch can add up to must fit.
void check_sum(const Limits& limits, const char* what, int64_t for_each) {
  check(limits.batch * for_each <= std::numeric_limits<int32_t>::max(), "a batch of ", limits.batch, " with ", for_each,
        " ", what, " each is more than 32 bits count, in the limits: ", limits);
}

}  // namespace

void Limits::check() const {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max() / 4;  // so that sums of a few still fit
  constexpr int32_t kMostHeads = 1 << 16;
  check_range(*this, "batch", batch, 1, kMost);
  check_range(*this, "context", context, 1, kMost);
  check_range(*this, "topk", topk, 1, kMostDrafts);
  check_range(*this, "draft steps", draft_steps, 0, kMostDrafts);
  check_range(*this, "draft tokens", draft_tokens, 0, kMostDrafts);
  check_range(*this, "chunk", chunk, 0, kMost);
  check_range(*this, "encoder context", encoder_context, 0, kMost);
  check_range(*this, "heads", heads, 1, kMostHeads);
  check_range(*this, "kv heads", kv_heads, 1, heads);
  check_range(*this, "key dim", key_dim, 1, kMostHeads);
  check_range(*this, "value dim", value_dim, 1, kMostHeads);
  check_range(*this, "threads", threads, 1, kMostHeads);
  check_range(*this, "query rows", query_rows, 0, kMost);
  check_range(*this, "wanted rows", wanted_rows, 0, query_rows);
  check_range(*this, "journal pages", journal_pages, 0, kMost);
  quire::check(heads % kv_heads == 0, "heads ", heads, " is not a multiple of kv heads ", kv_heads,
               ", in the limits: ", *this);
  quire::check(chunk % page_size.tokens() == 0, "chunk ", chunk, " is not a multiple of the page size ",
               page_size.tokens(), ", in the limits: ", *this);
  check_sum(*this, "text tokens", int64_t{1} + text_tokens());
  check_sum(*this, "encoder keys", int64_t{1} + encoder_context);
  check_sum(*this, "branch slots", int64_t{1} + int64_t{topk} * (draft_steps + 1));
  check_sum(*this, "tree mask entries", int64_t{1} + int64_t{draft_tokens} * draft_tokens);
  constexpr int64_t kMostPartials = int64_t{1} << 44;  // floats: past any address space, short of overflow
  quire::check(device == Device::cuda || partial_rows(*this) <= kMostPartials / value_dim, "partial results of ",
               partial_rows(*this), " rows fit no memory, in the limits: ", *this);
}

int64_t partial_rows(const Limits& limits) {
  const int64_t most_keys =
      limits.text_tokens() > limits.encoder_context ? limits.text_tokens() : limits.encoder_context;
  return most_split_tiles(limits.threads) * ranges_of(0, most_keys) *
         tile_positions(limits.heads, limits.kv_heads, limits.key_dim) * limits.heads;
}

namespace {

constexpr size_t kAlign = 64;
constexpr size_t kWord = sizeof(int32_t);
static_assert(sizeof(PageId) == kWord && sizeof(TokenSlot) == kWord && sizeof(RequestRow) == kWord &&
                  sizeof(float) == kWord,
              "every element is one 32-bit word");

size_t bytes_of(Shape shape) { return static_cast<size_t>(shape.rows * shape.columns) * kWord; }

const Limits& checked(const Limits& limits) {
  limits.check();
  return limits;
}

}  // namespace

// Measures the arena and, in the same walk, says where each buffer lies: size and use cannot drift apart.
MetadataArena::Offsets MetadataArena::layout(const Limits& limits) {
  Offsets offsets{};
  for (size_t i = 0; i < kBufferCount; ++i) {
    const size_t bytes = is_held(kBuffers[i], limits) ? bytes_of(kBuffers[i].shape(limits)) : 0;
    offsets[i + 1] = (offsets[i] + bytes + kAlign - 1) / kAlign * kAlign;
  }
  return offsets;
}

MetadataArena::MetadataArena(const Limits& limits, Place place) : limits_(checked(limits)) {
  const Offsets offsets = layout(limits_);
  memory_ = Buffer(offsets.back(), place);
  place_buffers(offsets);
}

MetadataArena::MetadataArena(const Limits& limits, MemoryPool& pool) : limits_(checked(limits)) {
  const Offsets offsets = layout(limits_);
  memory_ = Buffer(offsets.back(), pool);
  place_buffers(offsets);
}

size_t MetadataArena::bytes_for(const Limits& limits) { return layout(checked(limits)).back(); }

void MetadataArena::place_buffers(const Offsets& offsets) {
  for (size_t i = 0; i < kBufferCount; ++i)
    address_[i] = is_held(kBuffers[i], limits_) ? memory_.data() + offsets[i] : nullptr;
}

void MetadataArena::refuse(Buf id) const {
  throw CheckError(cat("the arena has no buffer ", id, " (role ", spec(id).role, ", read on ", spec(id).on,
                       "): it is made for ", limits_));
}

std::span<int32_t> MetadataArena::words(Buf id) const { return {counts(id), bytes_of(shape(id)) / kWord}; }

}  // namespace quire::attn
