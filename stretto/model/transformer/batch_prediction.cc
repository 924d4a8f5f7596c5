#include "stretto/model/transformer/batch_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/model/transformer/batch_model.h"
#include "stretto/model/transformer/batch_plan.h"

namespace stretto {
namespace {

constexpr std::int64_t kPage = 64;
constexpr std::int64_t kMostRows = 8192;

// The sequences of a step, those that go on first, and last those of nobody with which a step on
// GPUs is filled up.
struct Sequences {
  std::vector<std::int64_t> rows, tokens;
  std::size_t of_somebody = 0;

  std::int64_t num_rows() const {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  }
  bool is_nobody(std::size_t s) const { return s >= of_somebody; }
  // Those with one row, which come first.
  std::size_t num_single() const {
    return static_cast<std::size_t>(
        std::find_if(rows.begin(), rows.end(), [](std::int64_t n) { return n != 1; }) -
        rows.begin());
  }
};

void check(const ModelConfig& config, const BatchQuestion& q) {
  if (q.batch < 0 || q.prompt < 0 || q.batch + q.prompt < 1) {
    throw UserError("a step has at least one row: --batch or --prompt");
  }
  if (q.batch + q.prompt > kMostRows) {
    throw UserError(
        fmt::format("{} sequences and {} tokens of a prompt are {} rows, a step has {} "
                    "at most",
                    q.batch, q.prompt, q.batch + q.prompt, kMostRows));
  }
  if (q.context < 1) throw UserError("--context: need at least 1 token");
  std::int64_t longest = std::max(q.context, q.prompt);
  if (longest > config.max_positions) {
    throw UserError(fmt::format("{}: {} tokens are asked for, the model has {} positions",
                                config.where, longest, config.max_positions));
  }
}

Sequences sequences_of(const BatchQuestion& q) {
  Sequences s;
  s.rows.assign(static_cast<std::size_t>(q.batch), 1);
  s.tokens.assign(static_cast<std::size_t>(q.batch), q.context);
  if (q.prompt > 0) {
    s.rows.push_back(q.prompt);
    s.tokens.push_back(std::max(q.context, q.prompt));
  }
  s.of_somebody = s.rows.size();
  return s;
}

ModelShape shape_of(const ModelConfig& config, const predict::Machine& machine,
                    const BatchQuestion& q, const Sequences& sequences) {
  std::int64_t pages = 0;
  for (std::int64_t tokens : sequences.tokens) pages += ceil_div(tokens, kPage);
  BatchOptions options{.dtype = q.dtype,
                       .cache = {.page = kPage,
                                 .num_pages = pages,
                                 .sequences = std::ssize(sequences.rows),
                                 .prompts = PagedCache::kPromptsOnGpus,
                                 .fp8 = q.fp8_cache},
                       .plan_for = Target::kCuda,
                       .expert_groups = q.expert_groups,
                       .ulysses = q.ulysses,
                       .fused_experts = q.fused_experts};
  ModelShape shape = batch_shape(config, q.ranks, options);
  shape.weight_dtype = q.dtype;
  shape.machine = &machine;
  return shape;
}

// As batch_model.h does it.
Sequences filled(Sequences s, const BatchBounds& bucket, const ModelShape& shape) {
  std::int64_t more = bucket.filled(s.num_rows()) - s.num_rows();
  if (!shape.fills_steps() || more <= 0) return s;
  bool apart =
      shape.fills_by_kind() && s.num_single() == s.rows.size() && bucket.rows <= bucket.sequences;
  std::int64_t each = apart ? 1 : std::min(more, shape.max_tokens);
  for (std::int64_t i = 0; i < (apart ? more : 1); ++i) {
    s.rows.push_back(each);
    s.tokens.push_back(each);
  }
  return s;
}

// What the tables hold that the host gives a step: sequences one after the other, each in pages of
// its own, nobody's in the last one. By program and name; all ranks are given the same.
class HostTables {
 public:
  HostTables(const Sequences& sequences, const ModelShape& shape)
      : sequences_(sequences),
        width_(ceil_div(shape.max_tokens, kPage)),
        num_decodes_(shape.fills_by_kind() ? sequences.num_single() : 0) {
    std::int64_t page = 0;
    for (std::size_t s = 0; s < sequences.rows.size(); ++s) {
      std::int64_t count = ceil_div(sequences.tokens[s], kPage);
      auto page_of = [&](std::int64_t i) {
        return sequences.is_nobody(s) ? shape.paged.num_pages - 1 : page + i;
      };
      std::vector<std::int32_t> own(static_cast<std::size_t>(width_), 0);
      for (std::int64_t i = 0; i < count; ++i) {
        own[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(page_of(i));
      }
      for (std::int64_t row = 0; row < sequences.rows[s]; ++row) {
        std::int64_t position = sequences.tokens[s] - sequences.rows[s] + row;
        bool again = sequences.is_nobody(s) && (position >= kPage || s > sequences.of_somebody);
        std::int64_t slot = page_of(position / kPage) * kPage + position % kPage;
        slots_.push_back(again ? -1 : static_cast<std::int32_t>(slot));
      }
      page += count;
      pages_.insert(pages_.end(), own.begin(), own.end());
    }
  }

  predict::LaunchTables of(const Program& program) const {
    predict::TableValues values;
    auto entries = [&](const char* table) {
      int t = program.find_tensor(table);
      return static_cast<std::size_t>(num_elements(bound_shape(program, t)));
    };
    if (program.name.starts_with("paged_write")) values["slots"] = slots_;
    if (program.name.starts_with("paged_attention")) {
      std::vector<std::int32_t>&starts = values["starts"], &tokens = values["tokens"];
      starts.assign(entries("starts"), static_cast<std::int32_t>(sequences_.num_rows()));
      tokens.assign(entries("tokens"), 0);
      // The rows of decodes come before those of the first sequence here.
      const std::size_t parts_before = starts.size() - 1 - tokens.size();
      starts[0] = 0;
      auto row = static_cast<std::int64_t>(num_decodes_);
      for (std::size_t s = num_decodes_; s < sequences_.rows.size(); ++s) {
        const std::size_t own = s - num_decodes_;
        starts[own + parts_before] = static_cast<std::int32_t>(row);
        tokens[own] = static_cast<std::int32_t>(sequences_.tokens[s]);
        row += sequences_.rows[s];
      }
      values["pages"] = pages_of(num_decodes_, sequences_.rows.size(), entries("pages"));
    }
    if (program.name.starts_with("paged_decode")) {
      std::vector<std::int32_t>& tokens = values["tokens"];
      tokens.assign(sequences_.tokens.begin(),
                    sequences_.tokens.begin() + static_cast<std::ptrdiff_t>(num_decodes_));
      tokens.resize(entries("tokens"), 0);
      values["pages"] = pages_of(0, num_decodes_, entries("pages"));
    }
    auto ranks = static_cast<std::size_t>(program.world_size);
    if (values.empty()) return {};
    return [values, ranks](const std::vector<std::int64_t>&) {
      return std::vector<predict::TableValues>(ranks, values);
    };
  }

 private:
  // Of sequences begin .. end - 1, then zeros.
  std::vector<std::int32_t> pages_of(std::size_t begin, std::size_t end, std::size_t count) const {
    auto at = [&](std::size_t s) {
      return pages_.begin() + static_cast<std::ptrdiff_t>(s) * static_cast<std::ptrdiff_t>(width_);
    };
    std::vector<std::int32_t> out(at(begin), at(end));
    out.resize(count, 0);
    return out;
  }

  const Sequences& sequences_;
  std::int64_t width_;
  std::size_t num_decodes_;
  std::vector<std::int32_t> slots_, pages_;
};

std::int64_t rounded_up(std::int64_t rows) {
  std::int64_t bound = 256;
  while (bound < rows) bound *= 2;
  return bound;
}

}  // namespace

BatchPrediction predict_batch(const ModelConfig& config, const predict::Machine& machine,
                              const BatchQuestion& q) {
  check(config, q);
  const Sequences sequences = sequences_of(q);
  const ModelShape shape = shape_of(config, machine, q, sequences);
  const std::int64_t rows = q.batch + q.prompt;
  std::vector<BatchBounds> bounds = batch_bounds(shape, rounded_up(rows));
  auto bucket = std::find_if(bounds.begin(), bounds.end(),
                             [&](const BatchBounds& b) { return b.rows >= rows; });
  ModelShape of_step = shape;
  of_step.paged.sequences = bucket->sequences;
  ModelStep step = plan_step(of_step, bucket->rows);
  const Sequences all = filled(sequences, *bucket, of_step);
  StepRows step_rows{.count = all.num_rows()};
  const bool only_decodes = of_step.fills_by_kind() && all.num_single() == all.rows.size();
  if (only_decodes) step_rows.decodes = step_rows.count;
  BatchPrediction out;
  out.plan = std::move(step.plan);
  HostTables host(all, of_step);
  // The head takes so many rows at a time.
  const std::int64_t wanted = std::ssize(sequences.rows);
  const std::int64_t head_rows =
      out.plan.bounds()[static_cast<std::size_t>(out.plan.find_extent("wanted"))];
  out.step = step::predict(
      out.plan, machine,
      {.values = batch_extents(of_step, step_rows, {.wanted = std::min(wanted, head_rows)}),
       .runs = {{kHeadSection, ceil_div(wanted, head_rows)}},
       .tables = [&](std::size_t program) -> predict::LaunchTables {
         auto usual = step.usual_tables.find(static_cast<int>(program));
         return usual != step.usual_tables.end() ? usual->second
                                                 : host.of(out.plan.programs[program]);
       }});
  out.bytes = step::bytes_of(out.plan);
  out.time_ms = out.step.time_ms;
  out.tokens_per_second = static_cast<double>(rows) / (out.time_ms / 1e3);
  out.memory_bytes = out.bytes.total();
  out.bound_by = step::name(out.step.bound);
  return out;
}

}  // namespace stretto
