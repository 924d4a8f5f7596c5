// Requests in random company against the same requests alone, bit by bit: a failure means that what
// a client reads depends on who else asks.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "stretto/base/json.h"
#include "stretto/base/test_seed.h"
#include "stretto/engine/generate.h"
#include "stretto/engine/scheduler.h"
#include "stretto/model/transformer/batch_model.h"
#include "tests/reference_model.h"

namespace stretto {
namespace {

constexpr int kPage = 64;

struct Wish {
  std::vector<int> prompt;
  std::int64_t max_tokens = 1;
  bool every_row = false;
  int after_step = 0;     // when it comes
  int cancelled_at = -1;  // tokens after which it goes; -1: never
};

// Of every choice the token and a digest of all logits that it was made from; of the prompt, where
// all rows are asked for, digests.
struct Answer {
  std::vector<int> tokens;
  std::vector<std::size_t> logits;
  std::map<std::int64_t, std::size_t> prompt;  // by position

  bool operator==(const Answer&) const = default;
};

std::size_t digest_of(std::span<const float> logits) {
  std::string_view bytes(reinterpret_cast<const char*>(logits.data()), logits.size_bytes());
  return std::hash<std::string_view>{}(bytes);
}

struct Served {
  std::vector<Answer> answers;
  Scheduler::Counters counters;
  std::size_t most_running = 0;
};

// Every rank runs a scheduler of its own: the same calls, the same decisions.
void serve(BatchModel& model, const SchedulerLimits& limits, const std::vector<Wish>& wishes,
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
    std::vector<Piece> pieces = scheduler.decide();
    run.most_running = std::max(run.most_running, pieces.size());
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
      Answer& answer = run.answers[wish_of.at(p.id)];
      const Wish& wish = wishes[wish_of.at(p.id)];
      if (wish.every_row && p.first + row + 1 < std::ssize(wish.prompt)) {
        answer.prompt[p.first + row] = digest_of(logits);
      }
      if (!p.last || row + 1 != p.count) return;
      auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      chosen[p.id] = static_cast<int>(best);
      answer.tokens.push_back(static_cast<int>(best));
      answer.logits.push_back(digest_of(logits));
      if (std::ssize(answer.tokens) == wish.cancelled_at) scheduler.cancel(p.id);
    });
    scheduler.complete(chosen);
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

struct Company {
  const char* model;
  int ranks = 1;
};

class BatchTest : public testing::TestWithParam<Company> {};

TEST_P(BatchTest, AnswersAreThoseOfRequestsAlone) {
  std::uint64_t seed = test_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  ModelFiles files(std::string("checkpoints/") + GetParam().model);
  Requests requests(seed);
  std::vector<Wish> wishes;
  for (int i = 0; i < 40; ++i) {
    wishes.push_back(requests.wish(static_cast<int>(files.config.vocab_size)));
  }
  constexpr int kBlocks = 14;  // few, so that requests are cut short and begin again
  World world({.size = GetParam().ranks});
  std::vector<Served> together(static_cast<std::size_t>(world.size()));
  std::vector<Answer> alone;
  world.run([&](Rank& rank) {
    BatchModel model(rank, files.config, files.checkpoint,
                     {.max_rows = 64,
                      .max_tokens = 512,
                      .cache = {.page = kPage, .num_pages = kBlocks, .sequences = 16}});
    Served& run = together[static_cast<std::size_t>(rank.index())];
    serve(model, {.max_running = 16, .max_rows = 64, .num_blocks = kBlocks}, wishes, run);
    for (Wish wish : wishes) {
      Served one;
      wish.after_step = 0;
      serve(model, {.max_running = 1, .max_rows = 37, .num_blocks = 8, .prefix_caching = false},
            {wish}, one);
      if (rank.index() == 0) alone.push_back(one.answers[0]);
    }
  });
  for (const Served& run : together) {
    ASSERT_EQ(run.answers.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(run.answers[i].tokens, alone[i].tokens) << "request " << i;
      EXPECT_TRUE(run.answers[i] == alone[i]) << "request " << i;
    }
  }
  EXPECT_GT(together[0].counters.preemptions, 0);
  EXPECT_GT(together[0].counters.prefix_hits, 0);
  EXPECT_GT(together[0].most_running, 4U);
}

// The tokens are the model's: those of the step for one sequence, and of the reference library.
TEST_P(BatchTest, TokensAreTheModels) {
  ModelFiles files(std::string("checkpoints/") + GetParam().model);
  set_rope_frequencies(files.config, "checkpoint-dtype");
  Json golden = read_json_file(std::string("checkpoints/") + GetParam().model + "/golden.json");
  std::vector<Wish> wishes;
  for (const Json& prompt : golden.at("prompts")) {
    wishes.push_back({.prompt = prompt.at("ids").get<std::vector<int>>(),
                      .max_tokens = std::ssize(prompt.at("greedy_ids"))});
  }
  World world({.size = GetParam().ranks});
  Served run;
  world.run([&](Rank& rank) {
    BatchModel model(rank, files.config, files.checkpoint,
                     {.max_rows = 64,
                      .max_tokens = 512,
                      .cache = {.page = kPage, .num_pages = 64, .sequences = 16}});
    Served own;
    serve(model, {.max_running = 16, .max_rows = 64, .num_blocks = 64}, wishes, own);
    if (rank.index() == 0) run = own;
  });
  std::size_t equal = 0;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    auto want = golden.at("prompts")[i].at("greedy_ids").get<std::vector<int>>();
    equal += run.answers[i].tokens == want ? 1 : 0;
  }
  EXPECT_EQ(equal, wishes.size());
}

INSTANTIATE_TEST_SUITE_P(Models, BatchTest,
                         testing::Values(Company{"debian-llama-8m", 1},
                                         Company{"debian-llama-8m", 2},
                                         Company{"debian-llama-draft-1m", 3},
                                         Company{"debian-qwen3moe-18m", 2}),
                         [](const auto& info) {
                           std::string name = info.param.model;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::to_string(info.param.ranks);
                         });

}  // namespace
}  // namespace stretto
