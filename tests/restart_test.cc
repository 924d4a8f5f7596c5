// A rank that faults while others are served: with --restart-on-fault who runs is told, who waits
// is served as if nothing had been, and nothing of the cache is lost.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/engine/serving.h"
#include "stretto/server/server.h"

namespace stretto {
namespace {

using End = ServedRequest::End;

const ModelFiles& files() {
  static const ModelFiles all("checkpoints/debian-llama-draft-1m");
  return all;
}

struct Answer {
  std::shared_ptr<ServedRequest> request = std::make_shared<ServedRequest>();
  std::vector<int> tokens = {};
  std::promise<std::pair<End, std::string>> ended = {};
  std::future<std::pair<End, std::string>> end = ended.get_future();
};

// `faults_at`: the token at which rank 0 fails; negative: none. `ahead`: as it is told of the
// token, while the next step is under way; else as its logits are looked at.
std::unique_ptr<Answer> ask(int first_token, int faults_at = -1, bool ahead = false) {
  auto out = std::make_unique<Answer>();
  Answer* answer = out.get();
  ServedRequest& request = *answer->request;
  request.prompt = {first_token, 7, 8, 9};
  request.max_tokens = 30;
  request.sampling.temperature = 0;
  request.on_token = [answer, faults_at, ahead](const TokenLogprob& t) {
    answer->tokens.push_back(t.token);
    if (ahead && std::ssize(answer->tokens) == faults_at) throw Error("a rank was killed");
    return true;
  };
  if (faults_at >= 0 && !ahead) {
    request.on_logits = [answer, faults_at](std::span<const float>) {
      if (static_cast<int>(answer->tokens.size()) == faults_at) throw Error("a rank was killed");
    };
  }
  request.on_end = [answer](End end, const std::string& why) {
    answer->ended.set_value({end, why});
  };
  return out;
}

ServingOptions few_at_once(bool restarts, bool ahead = false) {
  return {.max_queue = 100,
          .max_num_seqs = 3,
          .max_num_batched_tokens = 32,
          .kv_bytes = std::size_t{4} << 20,
          .ahead = ahead,
          .restart_on_fault = restarts};
}

// The whole answer to a request; with a body, of POST.
std::string get(const std::string& url, const std::string& path, const std::string& body = "") {
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{
      .sin_family = AF_INET,
      .sin_port = htons(static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string out;
  const std::string request =
      fmt::format("{} {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
                  body.empty() ? "GET" : "POST", path, body.size(), body);
  if (::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      ::send(client, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char buffer[4096];
    for (ssize_t got = 0; (got = ::recv(client, buffer, sizeof(buffer), 0)) > 0;) {
      out.append(buffer, static_cast<std::size_t>(got));
    }
  }
  ::close(client);
  return out;
}

class Restart : public testing::TestWithParam<bool> {};  // ahead

TEST_P(Restart, WhoRunsIsToldAndWhoWaitsIsServed) {
  std::vector<std::vector<int>> alone;
  {
    ServingEngine engine(files(), {.world_size = 2}, few_at_once(false));
    engine.wait_until_ready();
    for (int i = 0; i < 8; ++i) {
      auto answer = ask(10 + i);
      engine.submit({answer->request});
      ASSERT_EQ(answer->end.get().first, End::kLength);
      alone.push_back(answer->tokens);
    }
  }
  ServingEngine engine(files(), {.world_size = 2}, few_at_once(true, GetParam()));
  Server server(files(), engine, {.port = 0, .access_log = false});
  engine.wait_until_ready();
  std::thread serving([&] { EXPECT_TRUE(server.run()); });
  EXPECT_NE(get(server.url(), "/health").find("200 OK"), std::string::npos);

  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<std::shared_ptr<ServedRequest>> requests;
  for (int i = 0; i < 8; ++i) {
    answers.push_back(ask(10 + i, i == 1 ? 5 : -1, GetParam()));
    requests.push_back(answers.back()->request);
  }
  std::string health;
  Answer* first = answers[0].get();
  first->request->on_end = [&, first](End end, const std::string& why) {
    health = get(server.url(), "/health");
    first->ended.set_value({end, why});
  };
  engine.submit(requests);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto [end, why] = answers[i]->end.get();
    EXPECT_EQ(end, End::kDied) << i;
    EXPECT_NE(why.find("a rank was killed"), std::string::npos) << why;
  }
  EXPECT_NE(health.find("HTTP/1.1 503"), std::string::npos) << health;
  EXPECT_NE(health.find("starts again after a fault"), std::string::npos) << health;
  for (std::size_t i = 3; i < 8; ++i) {
    EXPECT_EQ(answers[i]->end.get().first, End::kLength) << i;
    EXPECT_EQ(answers[i]->tokens, alone[i]) << i;
  }
  EXPECT_NE(get(server.url(), "/health").find("200 OK"), std::string::npos);
  EXPECT_NE(get(server.url(), "/metrics").find("\nstretto:restarts_total{"), std::string::npos);
  ServingEngine::State state = engine.state();
  while (state.running > 0) state = engine.state();
  EXPECT_EQ(state.restarts, 1);
  EXPECT_EQ(state.waiting, 0u);
  EXPECT_EQ(state.cache_use, 0) << "a block is lost";
  EXPECT_EQ(state.died_of, "");
  std::raise(SIGTERM);
  serving.join();
}
INSTANTIATE_TEST_SUITE_P(Ways, Restart, testing::Bool());

// The same as clients see it: 503 for who has no answer yet, an error event in a stream that has
// begun, an answer for who comes later. Once the engine is told to end, 503 at once.
TEST(RestartOnce, ClientsHear503) {
  ServingEngine engine(files(), {.world_size = 2}, few_at_once(true));
  Server server(files(), engine, {.port = 0, .access_log = false});
  engine.wait_until_ready();
  std::thread serving([&] { EXPECT_TRUE(server.run()); });
  auto complete = [&](const char* more) {
    return get(server.url(), "/v1/completions",
               fmt::format(R"({{"prompt": [5, 6, 7], "ignore_eos": true{}}})", more));
  };
  auto later = [&](const char* more) {
    return std::async(std::launch::async, [&complete, more] { return complete(more); });
  };
  auto whole = later(R"(, "max_tokens": 900)");
  auto stream = later(R"(, "max_tokens": 900, "stream": true)");
  while (engine.state().running < 2) std::this_thread::yield();
  auto killer = ask(10, 5);
  auto waits = later(R"(, "max_tokens": 6)");
  engine.submit({killer->request});
  EXPECT_EQ(killer->end.get().first, End::kDied);
  const std::string refused = whole.get();
  EXPECT_NE(refused.find("HTTP/1.1 503"), std::string::npos) << refused;
  EXPECT_NE(refused.find("\r\nRetry-After: 1\r\n"), std::string::npos) << refused;
  EXPECT_NE(refused.find("ServiceUnavailable"), std::string::npos) << refused;
  EXPECT_NE(refused.find("a rank was killed"), std::string::npos) << refused;
  const std::string cut = stream.get();
  EXPECT_NE(cut.find("HTTP/1.1 200"), std::string::npos) << cut;
  EXPECT_NE(cut.find("data: {\"error\":"), std::string::npos) << cut.substr(cut.size() - 300);
  EXPECT_NE(cut.find("\"code\":503"), std::string::npos) << cut.substr(cut.size() - 300);
  const std::string served = waits.get();  // or it ran with them, and heard the same
  EXPECT_TRUE(served.find("HTTP/1.1 200") != std::string::npos ||
              served.find("a rank was killed") != std::string::npos)
      << served;
  EXPECT_NE(complete(R"(, "max_tokens": 6)").find("\"finish_reason\":\"length\""),
            std::string::npos);
  // The answer is there before its request's blocks are free again.
  for (int i = 0; i < 1000 && engine.state().cache_use > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(engine.state().cache_use, 0) << "a block is lost";

  engine.drain();
  const std::string late = complete("");
  EXPECT_NE(late.find("HTTP/1.1 503"), std::string::npos) << late;
  EXPECT_NE(late.find("shutting down"), std::string::npos) << late;
  std::raise(SIGTERM);
  serving.join();
}

TEST(RestartOnce, WithoutTheOptionAllAreTold) {
  ServingEngine engine(files(), {.world_size = 2}, few_at_once(false));
  engine.wait_until_ready();
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<std::shared_ptr<ServedRequest>> requests;
  for (int i = 0; i < 6; ++i) {
    answers.push_back(ask(10 + i, i == 0 ? 2 : -1));
    requests.push_back(answers.back()->request);
  }
  engine.submit(requests);
  for (auto& answer : answers) EXPECT_EQ(answer->end.get().first, End::kDied);
  EXPECT_NE(engine.state().died_of.find("a rank was killed"), std::string::npos);
  EXPECT_THROW(engine.submit({ask(3)->request}), EngineBusy);
}

// A rank that stands still cannot be taken off its thread: everybody is told, by a thread that does
// not need it. What it says once it goes on reaches nobody.
TEST(RestartOnce, ARankThatDoesNotReturnIsTheEnd) {
  for (const bool restarts : {false, true}) {
    std::promise<void> goes_on;
    std::shared_future<void> until = goes_on.get_future();
    std::promise<std::string> lost;
    ServingOptions options = few_at_once(restarts);
    options.step_seconds = 0.5;
    options.on_lost = [&](const std::string& why) { lost.set_value(why); };
    ServingEngine engine(files(), {.world_size = 2}, options);
    Server server(files(), engine, {.port = 0, .access_log = false});
    engine.wait_until_ready();
    server.start();
    std::vector<std::unique_ptr<Answer>> answers;
    std::vector<std::shared_ptr<ServedRequest>> requests;
    for (int i = 0; i < 6; ++i) {  // three run, three wait
      answers.push_back(ask(10 + i));
      requests.push_back(answers.back()->request);
    }
    requests[1]->on_logits = [&](std::span<const float>) {
      if (answers[1]->tokens.size() == 4) until.wait();
    };
    engine.submit(requests);
    for (auto& answer : answers) {
      ASSERT_EQ(answer->end.wait_for(std::chrono::seconds(60)), std::future_status::ready);
      const auto [end, why] = answer->end.get();
      EXPECT_EQ(end, End::kDied);
      EXPECT_NE(why.find("a step has not ended for 0.5 s (--step-timeout)"), std::string::npos);
    }
    std::future<std::string> told = lost.get_future();
    ASSERT_EQ(told.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    EXPECT_EQ(told.get(), engine.state().died_of);
    EXPECT_TRUE(engine.state().lost);
    EXPECT_EQ(engine.state().running + engine.state().waiting, 0u);
    const std::string health = get(server.url(), "/health");
    EXPECT_NE(health.find("HTTP/1.1 503"), std::string::npos) << health;
    EXPECT_NE(health.find("a step has not ended"), std::string::npos) << health;
    const std::string late = get(server.url(), "/v1/completions", R"({"prompt": [5]})");
    EXPECT_NE(late.find("HTTP/1.1 503"), std::string::npos) << late;
    EXPECT_THROW(engine.submit({ask(3)->request}), EngineGone);
    goes_on.set_value();  // and the engine ends, and nobody is told twice
  }
}

// Weights are read from the checkpoint again; what another program has made of it is no model.
TEST(RestartOnce, FilesThatHaveChangedAreTheEnd) {
  const std::filesystem::path place =
      std::filesystem::temp_directory_path() / fmt::format("stretto-restart-{}", ::getpid());
  std::filesystem::copy("checkpoints/debian-llama-draft-1m", place);
  {
    const ModelFiles own(place);
    ServingEngine engine(own, {.world_size = 2}, few_at_once(true));
    engine.wait_until_ready();
    std::filesystem::resize_file(place / "model.safetensors", 4096);
    std::vector<std::unique_ptr<Answer>> answers;
    std::vector<std::shared_ptr<ServedRequest>> requests;
    for (int i = 0; i < 6; ++i) {
      answers.push_back(ask(10 + i, i == 0 ? 2 : -1));
      requests.push_back(answers.back()->request);
    }
    engine.submit(requests);
    for (auto& answer : answers) EXPECT_EQ(answer->end.get().first, End::kDied);
    const std::string why = engine.state().died_of;
    EXPECT_NE(why.find("model.safetensors: was cut short"), std::string::npos) << why;
    EXPECT_THROW(engine.submit({ask(3)->request}), EngineBusy);
  }
  std::filesystem::remove_all(place);
}

TEST(RestartOnce, FaultsWithoutAStepInBetweenAreTheEnd) {
  ServingEngine engine(files(), {.world_size = 1}, few_at_once(true));
  engine.wait_until_ready();
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<std::shared_ptr<ServedRequest>> requests;
  for (int i = 0; i < 12; ++i) {
    answers.push_back(ask(10 + i, 0));
    requests.push_back(answers.back()->request);
  }
  engine.submit(requests);
  for (auto& answer : answers) EXPECT_EQ(answer->end.get().first, End::kDied);
  EXPECT_EQ(engine.state().restarts, 2);
  EXPECT_NE(engine.state().died_of, "");
}

}  // namespace
}  // namespace stretto
