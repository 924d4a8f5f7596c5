#include "stretto/model/transformer/batch_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

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

void RowVisitor::miss(std::size_t /*piece*/, std::int64_t /*row*/) {
  throw InternalError("a row whose logits are gone");
}

void BatchModel::step(std::span<const BatchPiece> pieces, const Visit& visit) {
  if (pieces.empty()) return;
  begin(pieces);
  visit_logits(wanted_rows(pieces), [&](const Wanted& w, std::span<const float> logits) {
    if (visit) visit(w.piece, w.row, logits);
  });
}

void BatchModel::step(std::span<const BatchPiece> pieces, RowVisitor& visitor) {
  begin(pieces);
  finish(pieces, visitor);
}

void BatchModel::begin(std::span<const BatchPiece> pieces) {
  if (pieces.empty()) return;
  asked_.is_last = false;
  run(pieces);
}

bool BatchModel::choose(std::span<const BatchPiece> pieces, RowVisitor& visitor) {
  asked_ = {};
  num_chosen_ = 0;
  if (pieces.empty()) return true;
  asked_.step = bucket_->step.get();
  std::vector<Wanted> wanted = wanted_rows(pieces);
  if (asked_.step->chooses()) {
    choose_there(wanted, visitor);
  } else if (runner_->chosen() != nullptr) {
    choose_here(wanted, visitor);
  } else {
    asked_.logits = std::move(wanted);
    asked_.waits = true;
  }
  return !asked_.waits;
}

void BatchModel::finish(RowVisitor& visitor) {
  if (asked_.step == nullptr) return;
  if (asked_.results.size() < asked_.tokens.size()) take_choices();
  for (std::size_t i = 0; i < asked_.tokens.size(); ++i) {
    const Wanted& w = asked_.tokens[i];
    if (asked_.results[i].status == ChoiceStatus::kChosen) {
      visitor.take_choice(w.piece, w.row, asked_.results[i]);
    } else if (asked_.is_last) {
      asked_.logits.push_back(w);
    } else {
      visitor.miss(w.piece, w.row);
    }
  }
  const std::size_t vocab = static_cast<std::size_t>(shape().config->vocab_size);
  if (!asked_.kept.empty()) {
    std::span<const float> kept = asked_.kept;
    for (const Wanted& w : asked_.logits) {
      visitor.take(w.piece, w.row, kept.first(vocab));
      kept = kept.subspan(vocab);
    }
  } else {
    visit_logits(asked_.logits, [&](const Wanted& w, std::span<const float> logits) {
      visitor.take(w.piece, w.row, logits);
    });
  }
  asked_ = {};
}

std::span<const std::int32_t> BatchModel::chosen() const {
  return {runner_->chosen(), num_chosen_};
}

void BatchModel::set_chosen(std::span<const std::int32_t> tokens) {
  if (!tokens.empty()) std::copy(tokens.begin(), tokens.end(), runner_->chosen());
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
  runner_->begin_work();
  bucket_->step->run(rows);
  runner_->end_work();
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
  if (shape().chosen > 0) {
    STRETTO_CHECK(piece.source < 0 || (piece.tokens.size() == 1 && piece.source < shape().chosen),
                  "a token that no step has chosen");
    auto* sources = step.input_as<std::int32_t>(step_buffer::kSources) + row;
    std::fill_n(sources, piece.tokens.size(), piece.source);
  } else {
    STRETTO_CHECK(piece.source < 0, "a model whose tokens the host knows");
  }
  for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
    std::int64_t position = piece.first + static_cast<std::int64_t>(i);
    tokens[i] = piece.source < 0 ? piece.tokens[i] : 0;
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

// The device chooses; of as many rows at a time as its head has, all but the last are waited for.
void BatchModel::choose_there(std::span<const Wanted> wanted, RowVisitor& visitor) {
  std::vector<ChoiceWish> wishes;
  for (const Wanted& w : wanted) {
    ChoiceWish wish;
    const RowVisitor::Want want = visitor.want(w.piece, w.row, wish);
    if (want == RowVisitor::Want::kLogits) {
      asked_.logits.push_back(w);
      asked_.waits = true;
    }
    if (want != RowVisitor::Want::kToken) continue;
    asked_.tokens.push_back(w);
    wishes.push_back(wish);
  }
  const auto most = static_cast<std::size_t>(asked_.step->head_rows());
  for (std::size_t from = 0; from < wishes.size(); from += most) {
    if (from > 0) take_choices();
    const std::size_t count = std::min(most, wishes.size() - from);
    runner_->begin_work();
    asked_.step->choose(rows_of_step(std::span(asked_.tokens).subspan(from, count)),
                        std::span(wishes).subspan(from, count), static_cast<std::int64_t>(from));
    runner_->end_work();
  }
}

void BatchModel::take_choices() {
  const std::span<const ChoiceResult> results = asked_.step->choices();
  asked_.results.insert(asked_.results.end(), results.begin(), results.end());
}

// The host chooses in the device's place, and leaves the tokens where it takes them from.
void BatchModel::choose_here(std::span<const Wanted> wanted, RowVisitor& visitor) {
  visit_logits(wanted, [&](const Wanted& w, std::span<const float> logits) {
    choose_here(w, logits, visitor);
  });
}

void BatchModel::choose_here(const Wanted& wanted, std::span<const float> logits,
                             RowVisitor& visitor) {
  ChoiceWish wish;
  const RowVisitor::Want want = visitor.want(wanted.piece, wanted.row, wish);
  if (want == RowVisitor::Want::kNothing) return;
  Choice choice{.status = ChoiceStatus::kNothing};
  if (want == RowVisitor::Want::kToken) {
    scratch_.assign(logits.begin(), logits.end());
    choice = choose_token(scratch_, wish, choice_scratch_);
  }
  const bool is_chosen = choice.status == ChoiceStatus::kChosen;
  // Who comes after it counts on its place among the choices.
  if (want == RowVisitor::Want::kToken)
    runner_->chosen()[num_chosen_++] = is_chosen ? choice.token : 0;
  if (!is_chosen) asked_.waits = true;
  // Log-probabilities are those of the logits, as of steps one after the other.
  if (is_chosen && wish.row.num_top < 0) {
    asked_.tokens.push_back(wanted);
    asked_.results.push_back(
        {.status = choice.status, .token = static_cast<unsigned>(choice.token)});
  } else {
    asked_.logits.push_back(wanted);
    asked_.kept.insert(asked_.kept.end(), logits.begin(), logits.end());
  }
}

void BatchModel::visit_logits(std::span<const Wanted> wanted, const VisitWanted& visit) {
  BatchStep& step = *bucket_->step;
  const auto most = static_cast<std::size_t>(step.head_rows());
  const auto vocab = static_cast<std::size_t>(shape().config->vocab_size);
  for (std::size_t from = 0; from < wanted.size(); from += most) {
    const auto now = wanted.subspan(from, std::min(most, wanted.size() - from));
    runner_->begin_work();
    const float* logits = step.logits(rows_of_step(now));
    runner_->end_work();
    for (const Wanted& w : now) {
      visit(w, {logits, vocab});
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

namespace {

// Two GPUs in bf16 were measured (docs/decisions/0078-fused-experts-from-512-rows-on.md), and
// neither other numbers of them, nor experts or rows that are spread, nor e4m3.
std::int64_t fused_expert_rows(const ModelShape& s, FusedExperts asked) {
  if (asked != FusedExperts::kAuto) return asked == FusedExperts::kOn ? 1 : kNoFusedExperts;
  const bool measured = s.target == Target::kCuda && s.world_size == 2 && s.expert_groups == 1 &&
                        !s.ulysses && s.dtype == DType::kBF16 && !s.config->has_fp8_products();
  return measured ? kFusedExpertRows : kNoFusedExperts;
}

}  // namespace

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
                   .ulysses = options.ulysses,
                   .chosen = options.ahead ? options.cache.sequences : 0};
  shape.fused_expert_rows = fused_expert_rows(shape, options.fused_experts);
  if (shape.target == Target::kCuda) ++shape.paged.num_pages;
  if (shape.fills_by_kind() && !has_prompt_order(shape)) {
    shape.paged.attention = PagedCache::Attention::kPrompts;
  }
  return shape;
}

}  // namespace stretto
