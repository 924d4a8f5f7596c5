// Requests that a scheduler feeds to a BatchModel, and their answers: what batch_test.cc and
// gpu_batch_test.cc compare in company and alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string_view>
#include <vector>

#include "stretto/engine/scheduler.h"
#include "stretto/model/transformer/batch_model.h"

namespace stretto {

inline constexpr int kPage = 64;

struct Wish {
  std::vector<int> prompt;
  std::int64_t max_tokens = 1;
  bool every_row = false;
  int after_step = 0;     // when it comes
  int cancelled_at = -1;  // tokens after which it goes; -1: never
  int gone_after = -1;    // steps after which it goes, waiting or running; -1: never
};

// Of every choice the token and a digest of all logits that it was made from; of the prompt, where
// all rows are asked for, digests.
struct Reply {
  std::vector<int> tokens;
  std::vector<std::size_t> logits;
  std::vector<float> best;                     // the token's own
  std::map<std::int64_t, std::size_t> prompt;  // by position

  bool operator==(const Reply&) const = default;
};

inline std::size_t digest_of(std::span<const float> logits) {
  std::string_view bytes(reinterpret_cast<const char*>(logits.data()), logits.size_bytes());
  return std::hash<std::string_view>{}(bytes);
}

struct Served {
  std::vector<Reply> answers;
  Scheduler::Counters counters;
  std::size_t most_running = 0;
  std::int64_t steps = 0, running = 0;  // of all steps that ran something, with requests in each
  std::int64_t cancelled = 0;
};

// Every rank runs a scheduler of its own: the same calls, the same decisions.
inline void serve(BatchModel& model, const SchedulerLimits& limits, const std::vector<Wish>& wishes,
                  Served& run) {
  Scheduler scheduler(limits);
  run.answers.assign(wishes.size(), {});
  std::map<RequestId, std::size_t> wish_of;
  std::size_t begun = 0;
  for (int step = 0; begun < wishes.size() || !scheduler.is_idle(); ++step) {
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      if (wishes[i].after_step != step) continue;
      wish_of[scheduler.add({.tokens = wishes[i].prompt,
                             .max_tokens = wishes[i].max_tokens,
                             .every_row = wishes[i].every_row})] = i;
      ++begun;
    }
    for (const auto& [id, i] : wish_of) {
      const Wish& w = wishes[i];
      if (w.gone_after < 0 || w.after_step + w.gone_after != step || !scheduler.has(id)) continue;
      scheduler.cancel(id);
      ++run.cancelled;
    }
    std::vector<Piece> pieces = scheduler.decide();
    run.most_running = std::max(run.most_running, pieces.size());
    run.steps += pieces.empty() ? 0 : 1;
    run.running += std::ssize(pieces);
    std::vector<BatchPiece> rows;
    for (const Piece& p : pieces) {
      auto tokens = scheduler.tokens(p.id).subspan(static_cast<std::size_t>(p.first),
                                                   static_cast<std::size_t>(p.count));
      bool all = wishes[wish_of.at(p.id)].every_row;
      rows.push_back({.tokens = tokens,
                      .first = p.first,
                      .pages = scheduler.blocks(p.id),
                      .wanted = all      ? p.count
                                : p.last ? 1
                                         : 0});
    }
    std::map<RequestId, int> chosen;
    model.step(rows, [&](std::size_t i, std::int64_t row, std::span<const float> logits) {
      const Piece& p = pieces[i];
      Reply& answer = run.answers[wish_of.at(p.id)];
      const Wish& wish = wishes[wish_of.at(p.id)];
      if (wish.every_row && p.first + row + 1 < std::ssize(wish.prompt)) {
        answer.prompt[p.first + row] = digest_of(logits);
      }
      if (!p.last || row + 1 != p.count) return;
      auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      chosen[p.id] = static_cast<int>(best);
      answer.tokens.push_back(static_cast<int>(best));
      answer.logits.push_back(digest_of(logits));
      answer.best.push_back(logits[static_cast<std::size_t>(best)]);
      if (std::ssize(answer.tokens) != wish.cancelled_at) return;
      scheduler.cancel(p.id);
      ++run.cancelled;
    });
    if (!pieces.empty()) scheduler.complete(chosen);
    scheduler.verify();
  }
  run.counters = scheduler.counters();
}

class Requests {
 public:
  explicit Requests(std::uint64_t seed) : random_(seed) {}

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  // Some begin like others, so that pages are found again.
  Wish wish(int vocab) {
    Wish w{.prompt = {},
           .max_tokens = 1 + below(24),
           .every_row = below(6) == 0,
           .after_step = below(60),
           .cancelled_at = below(8) == 0 ? 1 + below(4) : -1};
    int count = 1 + below(below(3) == 0 ? 300 : 90);
    if (starts_.empty()) count = 140;
    if (!starts_.empty() && below(2) == 0) {
      const auto& start =
          starts_[below(3) == 0 ? static_cast<std::size_t>(below(std::ssize(starts_))) : 0];
      bool all = below(2) == 0;
      w.prompt.assign(start.begin(),
                      all ? start.end() : start.begin() + 1 + below(std::ssize(start)));
    }
    while (std::ssize(w.prompt) < count) w.prompt.push_back(2 + below(vocab - 2));
    starts_.push_back(w.prompt);
    return w;
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<int>> starts_;
};

}  // namespace stretto
