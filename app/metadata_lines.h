// The lines `metadata/...` of `quire bench metadata`: the writing of one step's metadata, in every mode and both forms.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/exec.h"
#include "metadata_world.h"
#include "short_line.h"

namespace quire::bench {

// Worlds are made when a chosen line needs them: the large one takes a moment.
class MetadataWorlds {
 public:
  explicit MetadataWorlds(int threads) : threads_(threads) {}
  const MetadataWorld& at(int32_t batch, int32_t context) {
    return worlds_.try_emplace({batch, context}, batch, context, threads_).first->second;
  }

 private:
  int threads_;
  std::map<std::pair<int32_t, int32_t>, MetadataWorld> worlds_;
};

// The lines refer to the worlds and to exec.
void add_metadata_lines(const Wanted& wanted, MetadataWorlds& worlds, Exec& exec, std::vector<ShortLine>& lines);

}  // namespace quire::bench
