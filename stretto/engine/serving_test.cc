// What an engine says of itself while it works, and who waits in its queue. If these fail, a gauge
// tells of requests that run as if they waited, or of those that are gone as if they ran.
#include "stretto/engine/serving.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stretto {
namespace {

using End = ServedRequest::End;
using Request = std::shared_ptr<ServedRequest>;

const ModelFiles& files() {
  static const ModelFiles all("checkpoints/debian-llama-draft-1m");
  return all;
}

ServingOptions options(bool ahead, int at_once) {
  return {.max_num_seqs = at_once,
          .max_num_batched_tokens = 32,
          .kv_bytes = std::size_t{4} << 20,
          .ahead = ahead};
}

struct Answer {
  Request request = std::make_shared<ServedRequest>();
  std::promise<End> ended = {};
  std::future<End> end = ended.get_future();
};

std::unique_ptr<Answer> ask(int first_token, std::int64_t max_tokens) {
  auto out = std::make_unique<Answer>();
  Answer* answer = out.get();
  answer->request->prompt = {first_token, 7, 8, 9};
  answer->request->max_tokens = max_tokens;
  answer->request->sampling.temperature = 0;
  answer->request->on_token = [](const TokenLogprob&) { return true; };
  answer->request->on_end = [answer](End end, const std::string&) { answer->ended.set_value(end); };
  return out;
}

class ServingState : public testing::TestWithParam<bool> {};  // ahead

// A prompt's first step may take seconds.
TEST_P(ServingState, TellsOfThoseThatRunWhileTheirFirstStepIsMade) {
  ServingEngine engine(files(), {}, options(GetParam(), 1));
  engine.wait_until_ready();
  auto runs = ask(5, 3), waits = ask(6, 1);
  std::optional<ServingEngine::State> seen;
  runs->request->on_logits = [&](std::span<const float>) {
    if (!seen) seen = engine.state();
  };
  engine.submit({runs->request, waits->request});
  EXPECT_EQ(runs->end.get(), End::kLength);
  EXPECT_EQ(waits->end.get(), End::kLength);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->running, 1u);
  EXPECT_EQ(seen->waiting, 1u);
  EXPECT_GT(seen->cache_use, 0);
}

TEST_P(ServingState, DoesNotTellOfThoseThatAreGone) {
  ServingEngine engine(files(), {}, options(GetParam(), 2));
  engine.wait_until_ready();
  auto stays = ask(5, 40), goes = ask(6, 400);
  bool is_gone = false;
  std::vector<std::size_t> running;  // in steps after the end of the other was told
  goes->request->on_end = [&](End end, const std::string&) {
    is_gone = true;  // on the engine's thread, as all of these
    goes->ended.set_value(end);
  };
  int steps = 0;
  stays->request->on_logits = [&](std::span<const float>) {
    if (++steps == 5) engine.cancel(goes->request);
    if (is_gone) running.push_back(engine.state().running);
  };
  engine.submit({stays->request, goes->request});
  EXPECT_EQ(goes->end.get(), End::kCancelled);
  EXPECT_EQ(stays->end.get(), End::kLength);
  EXPECT_GT(running.size(), 20u);
  for (std::size_t count : running) EXPECT_EQ(count, 1u);
}

INSTANTIATE_TEST_SUITE_P(Ways, ServingState, testing::Bool());

}  // namespace
}  // namespace stretto
