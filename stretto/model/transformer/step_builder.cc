#include "stretto/model/transformer/step_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "stretto/model/transformer/model_buffers.h"

namespace stretto {
namespace {

using step::Size;

enum ExtentIndex : int { kRows, kDecodes, kPrompts, kWanted, kFirst, kMost };

constexpr std::int64_t kHeadRows = 16;
// On GPUs, where any row may be asked for and the head's weights are read once
// for all of them.
constexpr std::int64_t kHeadRowsOnGpu = 256;

}  // namespace

std::vector<std::int64_t> batch_extents(const ModelShape& shape, const StepRows& rows,
                                        const HeadRows& head) {
  std::int64_t prompts = rows.count - rows.decodes;
  if (shape.fills_steps() && prompts > 0) prompts = rows.count;
  std::vector<std::int64_t> out = {rows.count, rows.decodes, prompts, head.wanted, head.first};
  if (shape.shares_experts()) out.push_back(rows.most);
  return out;
}

StepBuilder::StepBuilder(const ModelShape& shape, std::int64_t bound)
    : s_(shape),
      bound_(bound),
      head_rows_(std::min(shape.target == Target::kCuda ? kHeadRowsOnGpu : kHeadRows, bound)),
      plan_(fmt::format("{} rows", bound), shape.world_size, shape.all_ranks()) {
  plan_.extent("rows", bound);
  plan_.extent("decodes", std::min(shape.paged.sequences, bound));
  plan_.extent("prompts", bound);
  plan_.extent("wanted", head_rows_);
  plan_.extent("first", head_rows_);
  if (shape.shares_experts()) plan_.extent("most", bound);
  for (step::Buffer& b : model_buffers(shape)) plan_.buffer(std::move(b));
}

StepBuilder::Sizes StepBuilder::all() const { return {Size::of_extent(kRows)}; }
StepBuilder::Sizes StepBuilder::all_as_new() const { return {Size::of_extent(kRows), Size::of(0)}; }
StepBuilder::Sizes StepBuilder::own() const {
  return {{.terms = {{kRows}}, .divisor = s_.world_size}};
}
StepBuilder::Sizes StepBuilder::decodes() const {
  if (s_.fills_steps()) return fixed(std::min(s_.paged.sequences, bound_));
  return {Size::of_extent(kDecodes)};
}
StepBuilder::Sizes StepBuilder::prompts() const { return {Size::of_extent(kPrompts)}; }
StepBuilder::Sizes StepBuilder::most_own() const {
  return {{.terms = {{kMost}}, .divisor = s_.world_size}};
}
StepBuilder::Sizes StepBuilder::of_all_ranks() const {
  return {{.terms = {{kMost}}, .divisor = s_.world_size, .factor = s_.all_ranks()}};
}
Size StepBuilder::behind_decodes() const { return Size::of_extent(kDecodes); }

void StepBuilder::buffer(const std::string& name, DType dtype, Rows shape, Kind kind) {
  plan_.buffer({.name = name,
                .dtype = dtype,
                .kind = kind,
                .shape = {Size::of(shape.rows), Size::of(shape.cols)}});
}

void StepBuilder::symmetric(const std::string& name, DType dtype, Rows shape, bool across_groups,
                            Kind kind) {
  plan_.buffer({.name = name,
                .dtype = dtype,
                .kind = kind,
                .shape = {Size::of(shape.rows), Size::of(shape.cols)},
                .symmetric = true,
                .across_groups = across_groups});
}

// "layers.3.rms_norm.2".
std::string StepBuilder::name_of(int program, const Bindings& bindings, bool of_layer) {
  for (const step::NamedBinding& b : bindings) {
    if (!b.buffer.starts_with("layers.")) continue;
    layer_ = b.buffer.substr(0, b.buffer.find('.', sizeof("layers.") - 1) + 1);
  }
  std::string name = (of_layer ? layer_ : "") + program_at(program).name;
  int count = ++named_[name];
  return count == 1 ? name : fmt::format("{}.{}", name, count);
}

void StepBuilder::launch(int program, Sizes sizes, const Bindings& bindings) {
  plan_.node(name_of(program, bindings, !plan_.plan().nodes.empty()), program, std::move(sizes),
             bindings);
}

void StepBuilder::head(int program, const Bindings& bindings) {
  plan_.end_section(kBodySection);
  for (auto [rows, extent] :
       {std::pair{step_buffer::kWanted, kWanted}, {step_buffer::kHidden, kFirst}}) {
    Bindings all = {{"x", rows}};
    all.insert(all.end(), bindings.begin(), bindings.end());
    plan_.node(name_of(program, all, false), program, {Size::of_extent(extent)}, all);
  }
  plan_.end_section(kHeadSection);
}

}  // namespace stretto
