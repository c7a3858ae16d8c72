#include "metadata_lines.h"

#include "attn/write_metadata.h"
#include "base/check.h"

namespace quire::bench {
namespace {

using attn::Form;
using attn::LayerKind;
using attn::Mode;

struct Step {
  const char* name;
  Mode mode;
  LayerKind kind;
};
constexpr Step kSteps[] = {
    {"decode", Mode::decode, LayerKind::full},         {"local", Mode::decode, LayerKind::local},
    {"encoder", Mode::decode, LayerKind::encoder},     {"window", Mode::decode, LayerKind::window},
    {"extend", Mode::extend, LayerKind::full},         {"draft", Mode::draft, LayerKind::full},
    {"verify", Mode::verify, LayerKind::full},         {"draft_extend", Mode::draft_extend, LayerKind::full},
    {"draft_tree", Mode::draft_tree, LayerKind::full}, {"verify_tree", Mode::verify_tree, LayerKind::full},
};

struct Size {
  int32_t batch;
  int32_t context;
};
constexpr Size kSizes[] = {{128, 4096}, {128, 131072}};
constexpr Size kTreeSize = {32, 4096};
constexpr int32_t kDefaultContext = 4096;

std::string metadata_name(const Step& step, const Size& size, Form form) {
  std::string text = cat("metadata/", step.name, "/batch=", size.batch);
  if (size.context != kDefaultContext) text += cat("/context=", size.context);
  if (form == Form::materialised) text += "/form=materialised";
  return text;
}

double bytes_written(const MetadataWorld& world, const attn::StepShape& shape) {
  const attn::Limits& limits = world.arena().limits();
  int64_t elements = 0;
  for (const attn::BufferSpec& buffer : attn::kBuffers)
    for (int64_t row = 0; row < buffer.shape(limits).rows; ++row)
      elements += attn::readable(buffer, shape, world.inputs(), limits, row);
  return static_cast<double>(elements) * sizeof(int32_t);
}

ShortLine metadata_line(const std::string& name, const MetadataWorld& world, const attn::StepShape& shape, Exec& exec) {
  attn::check_step(shape, world.inputs(), world.arena().limits());
  const auto write = [&world, shape, inputs = world.inputs(), &exec] {
    attn::write_metadata(shape, inputs, world.arena(), exec);
  };
  return {.name = name, .seconds = in_a_loop(write), .bytes = bytes_written(world, shape)};
}

void add_metadata_line(const Step& step, const Size& size, Form form, const Wanted& wanted, MetadataWorlds& worlds,
                       Exec& exec, std::vector<ShortLine>& lines) {
  const std::string name = metadata_name(step, size, form);
  if (!wanted(name)) return;
  const MetadataWorld& world = worlds.at(size.batch, size.context);
  lines.push_back(metadata_line(name, world, world.shape(step.mode, step.kind, form), exec));
}

}  // namespace

void add_metadata_lines(const Wanted& wanted, MetadataWorlds& worlds, Exec& exec, std::vector<ShortLine>& lines) {
  for (Form form : {Form::in_place, Form::materialised}) {
    for (const Step& step : kSteps) {
      if (step.mode == Mode::verify_tree) add_metadata_line(step, kTreeSize, form, wanted, worlds, exec, lines);
      for (const Size& size : kSizes) add_metadata_line(step, size, form, wanted, worlds, exec, lines);
    }
  }
}

}  // namespace quire::bench
