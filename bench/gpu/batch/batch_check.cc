#include "bench/gpu/batch/batch_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string_view>
#include <vector>

#include "bench/gpu/harness/progress.h"
#include "stretto/engine/scheduler.h"

namespace stretto::bench {
namespace {

struct Wish {
  std::vector<int> prompt;
  std::int64_t max_tokens = 1;
};

struct Answer {
  std::vector<int> tokens;
  std::vector<std::size_t> logits;  // digests
};

struct Served {
  std::vector<Answer> answers;
  std::int64_t preemptions = 0, steps = 0;
};

Served serve(BatchModel& model, const SchedulerLimits& limits, std::span<const Wish> wishes) {
  Scheduler scheduler(limits);
  Served out;
  out.answers.resize(wishes.size());
  std::map<RequestId, std::size_t> wish_of;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    wish_of[scheduler.add({.tokens = wishes[i].prompt, .max_tokens = wishes[i].max_tokens})] = i;
  }
  for (; !scheduler.is_idle(); ++out.steps) {
    std::vector<Piece> pieces = scheduler.decide();
    std::vector<BatchPiece> rows;
    for (const Piece& p : pieces) {
      rows.push_back({.tokens = scheduler.tokens(p.id).subspan(static_cast<std::size_t>(p.first),
                                                               static_cast<std::size_t>(p.count)),
                      .first = p.first,
                      .pages = scheduler.blocks(p.id),
                      .wanted = p.last ? 1 : 0});
    }
    std::map<RequestId, int> chosen;
    model.step(rows, [&](std::size_t i, std::int64_t, std::span<const float> logits) {
      Answer& answer = out.answers[wish_of.at(pieces[i].id)];
      auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      chosen[pieces[i].id] = static_cast<int>(best);
      answer.tokens.push_back(static_cast<int>(best));
      std::string_view bytes(reinterpret_cast<const char*>(logits.data()), logits.size_bytes());
      answer.logits.push_back(std::hash<std::string_view>{}(bytes));
    });
    if (!pieces.empty()) scheduler.complete(chosen);
  }
  out.preemptions = scheduler.counters().preemptions;
  return out;
}

std::vector<Wish> wishes_of(const CompanySettings& s, std::int64_t vocab) {
  std::mt19937_64 random(s.seed);
  auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<Wish> wishes(static_cast<std::size_t>(s.requests));
  for (Wish& w : wishes) {
    w.max_tokens = between(8, 40);
    w.prompt.resize(
        static_cast<std::size_t>(between(0, 3) == 0 ? between(1, 24) : between(25, 400)));
    for (int& token : w.prompt) token = between(0, static_cast<int>(vocab) - 1);
  }
  return wishes;
}

}  // namespace

Company compare_company(BatchModel& model, const CompanySettings& s) {
  std::vector<Wish> wishes = wishes_of(s, model.shape().config->vocab_size);
  const std::int64_t page = model.shape().paged.page;
  std::int64_t all = 0, most = 0;  // pages
  for (const Wish& w : wishes) {
    std::int64_t pages = ceil_div(std::ssize(w.prompt) + w.max_tokens, page);
    all += pages;
    most = std::max(most, pages);
  }
  // Enough for half of them.
  auto blocks = static_cast<int>(std::clamp(all / 2, most, s.num_pages));
  Clock::time_point begin = Clock::now();
  Served together = serve(model,
                          {.max_running = s.requests,
                           .max_rows = static_cast<int>(s.max_rows),
                           .max_prompts = static_cast<int>(PagedCache::kPromptsOnGpus),
                           .num_blocks = blocks,
                           .block_tokens = static_cast<int>(page)},
                          wishes);
  Company out{.requests = s.requests,
              .preemptions = together.preemptions,
              .steps = together.steps,
              .together_s = seconds_since(begin)};
  for (const Answer& a : together.answers) {
    out.tokens += std::ssize(a.tokens);
    for (std::size_t bits : a.logits) out.digest = out.digest * 1'000'003 + bits;
  }
  begin = Clock::now();
  for (std::size_t i = 0; i < wishes.size() && seconds_since(begin) < s.seconds; ++i, ++out.alone) {
    Served alone = serve(model,
                         {.max_running = 1,
                          .max_rows = static_cast<int>(s.max_rows),
                          .max_prompts = static_cast<int>(PagedCache::kPromptsOnGpus),
                          .num_blocks = static_cast<int>(most),
                          .block_tokens = static_cast<int>(page),
                          .prefix_caching = false},
                         {&wishes[i], 1});
    const Answer& a = alone.answers[0];
    const Answer& b = together.answers[i];
    out.other_tokens += a.tokens != b.tokens;
    out.other_bits += a.logits != b.logits;
    if (a.logits == b.logits || !out.first.empty()) continue;
    auto at = std::mismatch(a.logits.begin(), a.logits.end(), b.logits.begin(), b.logits.end());
    out.first = fmt::format("request {} of {} tokens, choice {}", i, wishes[i].prompt.size(),
                            at.first - a.logits.begin());
  }
  out.alone_s = seconds_since(begin);
  return out;
}

std::string Company::to_string() const {
  return fmt::format(
      "{} requests, {} tokens in {} steps and {:.1f} s, {} preemptions; {} of them alone in {:.1f} "
      "s: {} with other tokens, {} with other bits{}; bits of "
      "all answers {:016x}",
      requests, tokens, steps, together_s, preemptions, alone, alone_s, other_tokens, other_bits,
      first.empty() ? "" : ", first " + first, digest);
}

Json Company::to_json() const {
  return {{"requests", requests},
          {"alone", alone},
          {"other_tokens", other_tokens},
          {"other_bits", other_bits},
          {"tokens", tokens},
          {"preemptions", preemptions},
          {"steps", steps},
          {"together_s", together_s},
          {"alone_s", alone_s},
          {"first", first},
          {"digest", fmt::format("{:016x}", digest)}};
}

}  // namespace stretto::bench
