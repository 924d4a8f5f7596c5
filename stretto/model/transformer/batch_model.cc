#include "stretto/model/transformer/batch_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "stretto/base/ceil_div.h"
#include "stretto/base/errors.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/model/transformer/paged_plan.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {
BatchModel::BatchModel(std::unique_ptr<BatchRunner> runner, std::int64_t max_rows,
                       Progress* progress)
    : runner_(std::move(runner)) {
  const ModelShape& s = shape();
  rope_ = make_rope_table(s.config->rope, s.config->head_dim, s.max_tokens);
  for (BatchBounds& b : batch_bounds(s, max_rows)) {
    buckets_.push_back({.bounds = std::move(b), .step = nullptr});
  }
  // The largest first: what takes the most memory fails before the rest is made.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    if (progress != nullptr) {
      progress->within(fmt::format("step {} of {}, {} rows", bucket - buckets_.rbegin() + 1,
                                   buckets_.size(), bucket->bounds.rows));
      progress->begin("planning");
    }
    bucket->step = runner_->make_step(bucket->bounds);
  }
}

void BatchModel::step(std::span<const BatchPiece> pieces, const Visit& visit) {
  if (pieces.empty()) return;
  begin(pieces);
  visit_logits(wanted_rows(pieces), visit);
}

void BatchModel::step(std::span<const BatchPiece> pieces, RowVisitor& visitor) {
  begin(pieces);
  finish(pieces, visitor);
}

void BatchModel::finish(std::span<const BatchPiece> pieces, RowVisitor& visitor) {
  if (pieces.empty()) return;
  std::vector<Wanted> wanted = wanted_rows(pieces);
  if (bucket_->step->chooses()) wanted = visit_choices(wanted, visitor);
  visit_logits(wanted, [&](std::size_t piece, std::int64_t row, std::span<const float> logits) {
    visitor.take(piece, row, logits);
  });
}

void BatchModel::begin(std::span<const BatchPiece> pieces) {
  if (!pieces.empty()) run(pieces);
}

bool BatchModel::step_with_others() { return shape().shares_experts() && run({}); }

bool BatchModel::run(std::span<const BatchPiece> pieces) {
  std::int64_t count = 0;
  for (const BatchPiece& piece : pieces) count += std::ssize(piece.tokens);
  const std::int64_t most = runner_->most_rows(count);
  if (most == 0) return false;
  auto bucket = std::find_if(buckets_.begin(), buckets_.end() - 1,
                             [&](const Bucket& b) { return b.bounds.rows >= most; });
  bucket_ = &*bucket;
  StepRows rows = place(pieces, most);
  rows.most = std::max(rows.count, most);
  bucket_->step->run(rows);
  return true;
}

// Writes a step's inputs: rows of decodes first.
StepRows BatchModel::place(std::span<const BatchPiece> pieces, std::int64_t most) {
  using Attention = PagedCache::Attention;
  const Attention attention = shape().paged.attention;
  first_row_.assign(pieces.size(), 0);
  StepRows rows;
  Sequences sequences;
  for (bool single : {true, false}) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if ((pieces[i].tokens.size() == 1) != single) continue;
      STRETTO_CHECK(single || attention != Attention::kDecodes, "a prompt in a step of decoding");
      first_row_[i] = rows.count;
      place_piece(pieces[i], single && attention != Attention::kPrompts, rows, sequences);
    }
  }
  if (shape().fills_steps()) fill_up(bucket_->bounds.filled(most), rows, sequences);
  if (attention == Attention::kDecodes) return rows;
  BatchStep& step = *bucket_->step;
  const bool by_kind = shape().fills_by_kind();
  if (by_kind) {
    auto* decoded = step.input_as<std::int32_t>(step_buffer::kDecodeTokens);
    std::fill(decoded + sequences.decodes, decoded + bucket_->bounds.sequences, 0);
  }
  if (shape().only_decodes(bucket_->bounds.rows)) return rows;
  auto* starts = step.input_as<std::int32_t>(step_buffer::kPromptStarts);
  auto* tokens = step.input_as<std::int32_t>(step_buffer::kPromptTokens);
  // With the rows of decodes in front of them, or behind these.
  if (by_kind) *starts++ = 0;
  const std::int64_t parts = most_prompts();
  std::fill(starts + sequences.prompts, starts + parts + 1,
            static_cast<std::int32_t>(rows.count - (by_kind ? 0 : rows.decodes)));
  std::fill(tokens + sequences.prompts, tokens + parts, 0);
  return rows;
}

std::int64_t BatchModel::most_prompts() const {
  ModelShape of_step = shape();
  of_step.paged.sequences = bucket_->bounds.sequences;
  return of_step.prompt_sequences(bucket_->bounds.rows);
}

void BatchModel::place_piece(const BatchPiece& piece, bool apart, StepRows& rows,
                             Sequences& sequences) {
  std::int64_t& count = apart ? sequences.decodes : sequences.prompts;
  auto size = static_cast<std::int64_t>(piece.tokens.size());
  STRETTO_CHECK(size > 0 && rows.count + size <= bucket_->bounds.rows && piece.first >= 0 &&
                    piece.first + size <= shape().max_tokens &&
                    count < (apart ? bucket_->bounds.sequences : most_prompts()) &&
                    piece.wanted <= size,
                "a step outside its bounds");
  if (!apart) {
    const bool by_kind = shape().fills_by_kind();
    bucket_->step->input_as<std::int32_t>(step_buffer::kPromptStarts)[count + (by_kind ? 1 : 0)] =
        static_cast<std::int32_t>(rows.count - (by_kind ? 0 : rows.decodes));
  }
  place_rows(piece, rows.count);
  place_pages(piece, count++, apart);
  rows.count += size;
  if (apart) rows.decodes = rows.count;
}

// Rows of nobody, as if they began a sequence, or each its own, all pages of which are the last.
// The first of them fill that page, and no slot is written twice.
void BatchModel::fill_up(std::int64_t full, StepRows& rows, Sequences& sequences) {
  // Where all others decode, so that no launch is needed for prompts.
  const BatchBounds& bounds = bucket_->bounds;
  const bool decodes =
      shape().fills_by_kind() && sequences.prompts == 0 && bounds.rows <= bounds.sequences;
  const bool apart = decodes || shape().paged.attention == PagedCache::Attention::kDecodes;
  auto* slots = bucket_->step->input_as<std::int32_t>(step_buffer::kSlots);
  const std::int64_t first = rows.count;
  while (rows.count < full) {
    auto size =
        static_cast<std::size_t>(apart ? 1 : std::min(full - rows.count, shape().max_tokens));
    const std::vector<int> tokens(size, 0);
    const std::vector<int> pages(size, static_cast<int>(shape().paged.num_pages) - 1);
    const std::int64_t row = rows.count;
    place_piece({.tokens = tokens, .pages = pages}, apart, rows, sequences);
    std::int64_t written = row > first ? 0 : shape().paged.page;
    if (row + written < rows.count) std::fill(slots + row + written, slots + rows.count, -1);
  }
}

void BatchModel::place_rows(const BatchPiece& piece, std::int64_t row) {
  BatchStep& step = *bucket_->step;
  const std::int64_t page = shape().paged.page;
  auto* slots = step.input_as<std::int32_t>(step_buffer::kSlots) + row;
  auto* tokens = step.input_as<std::int32_t>(step_buffer::kTokens) + row;
  for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
    std::int64_t position = piece.first + static_cast<std::int64_t>(i);
    tokens[i] = piece.tokens[i];
    std::int64_t of = piece.pages[static_cast<std::size_t>(position / page)];
    slots[i] = static_cast<std::int32_t>(of * page + position % page);
  }
  auto bytes = static_cast<std::int64_t>(sizeof(float)) * rope_.cos.cols();
  auto size = static_cast<std::size_t>(bytes) * piece.tokens.size();
  std::memcpy(step.input("cos") + row * bytes, rope_.cos.row(piece.first), size);
  std::memcpy(step.input("sin") + row * bytes, rope_.sin.row(piece.first), size);
}

void BatchModel::place_pages(const BatchPiece& piece, std::int64_t sequence, bool decodes) {
  BatchStep& step = *bucket_->step;
  const std::int64_t width = ceil_div(shape().max_tokens, shape().paged.page);
  std::int64_t seen = piece.first + static_cast<std::int64_t>(piece.tokens.size());
  std::int64_t used = ceil_div(seen, shape().paged.page);
  STRETTO_CHECK(used <= static_cast<std::int64_t>(piece.pages.size()), "a piece without pages");
  auto* pages =
      step.input_as<std::int32_t>(decodes ? step_buffer::kDecodePages : step_buffer::kPromptPages) +
      sequence * width;
  std::copy_n(piece.pages.begin(), used, pages);
  step.input_as<std::int32_t>(decodes ? step_buffer::kDecodeTokens
                                      : step_buffer::kPromptTokens)[sequence] =
      static_cast<std::int32_t>(seen);
}

std::vector<BatchModel::Wanted> BatchModel::wanted_rows(std::span<const BatchPiece> pieces) const {
  std::vector<Wanted> out;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto size = static_cast<std::int64_t>(pieces[i].tokens.size());
    for (std::int64_t row = size - pieces[i].wanted; row < size; ++row) out.push_back({i, row});
  }
  return out;
}

std::vector<std::int64_t> BatchModel::rows_of_step(std::span<const Wanted> wanted) const {
  std::vector<std::int64_t> rows;
  for (const Wanted& w : wanted) rows.push_back(first_row_[w.piece] + w.row);
  return rows;
}

std::vector<BatchModel::Wanted> BatchModel::visit_choices(std::span<const Wanted> wanted,
                                                          RowVisitor& visitor) {
  std::vector<Wanted> left, chosen;
  std::vector<ChoiceWish> wishes;
  for (const Wanted& w : wanted) {
    ChoiceWish wish;
    const RowVisitor::Want want = visitor.want(w.piece, w.row, wish);
    if (want == RowVisitor::Want::kLogits) left.push_back(w);
    if (want != RowVisitor::Want::kToken) continue;
    chosen.push_back(w);
    wishes.push_back(wish);
  }
  const auto most = static_cast<std::size_t>(bucket_->step->head_rows());
  for (std::size_t from = 0; from < chosen.size(); from += most) {
    const std::size_t count = std::min(most, chosen.size() - from);
    const std::span<const Wanted> now = std::span(chosen).subspan(from, count);
    std::span<const ChoiceResult> results =
        bucket_->step->choose(rows_of_step(now), std::span(wishes).subspan(from, count));
    for (std::size_t i = 0; i < count; ++i) {
      if (results[i].status == ChoiceStatus::kChosen) {
        visitor.take_choice(now[i].piece, now[i].row, results[i]);
      } else {
        left.push_back(now[i]);
      }
    }
  }
  return left;
}

void BatchModel::visit_logits(std::span<const Wanted> wanted, const Visit& visit) {
  const auto most = static_cast<std::size_t>(bucket_->step->head_rows());
  const auto vocab = static_cast<std::size_t>(shape().config->vocab_size);
  for (std::size_t from = 0; from < wanted.size(); from += most) {
    const auto now = wanted.subspan(from, std::min(most, wanted.size() - from));
    const float* logits = bucket_->step->logits(rows_of_step(now));
    for (const Wanted& w : now) {
      if (visit) visit(w.piece, w.row, {logits, vocab});
      logits += vocab;
    }
  }
}

void check_groups(const ModelConfig& config, int num_ranks, int data_groups, int expert_groups) {
  if (data_groups < 1 || num_ranks % data_groups != 0) {
    throw UserError(fmt::format("{}: {} data-parallel groups do not divide {} ranks", config.where,
                                data_groups, num_ranks));
  }
  if (expert_groups == 1) return;
  if (!config.moe) throw UserError(fmt::format("{}: has no experts to spread", config.where));
  check_split(config.where, expert_split(config, num_ranks, expert_groups));
}

ModelShape batch_shape(const ModelConfig& config, int num_ranks, const BatchOptions& options) {
  check_groups(config, num_ranks, options.data_groups, options.expert_groups);
  check_blocks(config, num_ranks / options.data_groups);
  if (config.has_fp8_products() && options.ulysses) {
    throw UserError(fmt::format(
        "{}: e4m3 weights are not spread by heads (sequence-parallel prompts)", config.where));
  }
  ModelShape shape{.config = &config,
                   .world_size = num_ranks / options.data_groups,
                   .dtype = options.dtype,
                   .max_tokens = options.max_tokens > 0
                                     ? std::min(options.max_tokens, config.max_positions)
                                     : config.max_positions,
                   .paged = options.cache,
                   .target = options.plan_for,
                   .expert_groups = options.expert_groups,
                   .data_groups = options.data_groups,
                   .ulysses = options.ulysses};
  if (shape.target == Target::kCuda) ++shape.paged.num_pages;
  if (shape.fills_by_kind() && !has_prompt_order(shape)) {
    shape.paged.attention = PagedCache::Attention::kPrompts;
  }
  return shape;
}

}  // namespace stretto
