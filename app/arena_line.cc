#include "arena_line.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <list>

#include "base/check.h"

namespace quire::bench {
namespace {

int64_t resident_bytes() {
  int64_t total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

// Arenas die after the clock was read: a server makes one and keeps it.
double seconds_to_create(int64_t arenas, const attn::Limits& limits) {
  std::vector<attn::MetadataArena> kept;
  kept.reserve(static_cast<size_t>(arenas));
  return seconds_of([&] {
    for (int64_t i = 0; i < arenas; ++i) kept.emplace_back(limits);
  });
}

// Of many arenas, because the system's books are only exact to some dozens of pages.
double resident_bytes_of_arena(const attn::Limits& limits) {
  constexpr int kArenas = 64;
  std::list<attn::MetadataArena> kept;
  const int64_t before = resident_bytes();
  for (int i = 0; i < kArenas; ++i) kept.emplace_back(limits);
  return static_cast<double>(resident_bytes() - before) / kArenas;
}

}  // namespace

std::string arena_name() {
  return cat("arena/context=", kArenaLimits.context, "/batch=", kArenaLimits.batch,
             "/nodes=", kArenaLimits.draft_tokens);
}

void add_arena_line(const Wanted& wanted, int threads, std::vector<ShortLine>& lines) {
  attn::Limits limits = kArenaLimits;
  limits.threads = threads;
  const std::string name = arena_name();
  if (!wanted(name)) return;
  char note[96];
  std::snprintf(note, sizeof(note), "%.1f KB resident of %.1f MB", resident_bytes_of_arena(limits) / 1e3,
                static_cast<double>(attn::MetadataArena(limits).bytes()) / 1e6);
  lines.push_back(
      {.name = name, .seconds = [limits](int64_t calls) { return seconds_to_create(calls, limits); }, .note = note});
}

}  // namespace quire::bench
