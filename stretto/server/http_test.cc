// Who answers requests, over a socket. If this fails, a client goes and its answer is computed to
// its end for nobody, in the place of those who wait.
#include "stretto/server/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace stretto {
namespace {

constexpr std::chrono::seconds kDeadline{20};

class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit{.tv_sec = kDeadline.count(), .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(port), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    const std::string text = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    EXPECT_EQ(::send(socket_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  ~Client() { go(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Reads up to and with `text`.
  void read_until(const std::string& text) {
    std::string got(4096, '\0'), all;
    while (all.find(text) == std::string::npos) {
      const ssize_t count = ::recv(socket_, got.data(), got.size(), 0);
      ASSERT_GT(count, 0) << "instead of '" << text << "' there came: " << all;
      all.append(got, 0, static_cast<std::size_t>(count));
    }
  }
  void go() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

 private:
  int socket_;
};

// A server whose requests are handed to the test; `taken` runs on the server's thread before.
class HttpServing : public testing::Test {
 protected:
  using Exchanged = std::shared_ptr<HttpExchange>;
  std::function<void(const Exchanged&)> taken = [](const Exchanged&) {};

  ~HttpServing() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }
  // Its port.
  std::uint16_t serve() {
    thread_ = std::thread([this] { server_.run(); });
    return server_.port();
  }
  Exchanged next_request() {
    std::future<Exchanged> request = request_.get_future();
    if (request.wait_for(kDeadline) != std::future_status::ready) throw std::runtime_error("none");
    return request.get();
  }
  void await_no_connection() const {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (server_.num_connections() > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(server_.num_connections(), 0u);
  }

 private:
  std::promise<Exchanged> request_;
  HttpServer server_{"127.0.0.1", 0, {}, [this](Exchanged exchange) {
                       taken(exchange);
                       request_.set_value(std::move(exchange));
                     }};
  std::thread thread_;
};

// Counts how often it was told.
struct Asked {
  std::atomic<int> told{0};
  std::function<void()> tell = [this] { ++told; };
  bool is_told() const {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (told == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return told > 0;
  }
};

// Who takes a request asks on the server's thread, who computes its answer on one of its own.
enum class Order { kTakerFirst, kTakerLast, kAtOnce };
class HttpGone : public HttpServing, public testing::WithParamInterface<Order> {};

TEST_P(HttpGone, AllWhoAskAreToldOnce) {
  Asked taker, other;
  auto ask_on_thread = [&](const Exchanged& e) {
    return std::thread([&other, e] { e->on_gone(other.tell); });
  };
  std::thread beside;
  taken = [&](const Exchanged& e) {
    if (GetParam() == Order::kTakerLast) ask_on_thread(e).join();
    if (GetParam() == Order::kAtOnce) beside = ask_on_thread(e);
    e->on_gone(taker.tell);
  };
  Client client(serve());
  Exchanged exchange = next_request();
  if (GetParam() == Order::kTakerFirst) beside = ask_on_thread(exchange);
  if (beside.joinable()) beside.join();
  // What is said after both have asked is sent after the server has heard them.
  exchange->begin_stream({});
  exchange->send("a word");
  client.read_until("a word");
  EXPECT_EQ(taker.told + other.told, 0);
  client.go();
  EXPECT_TRUE(taker.is_told());
  EXPECT_TRUE(other.is_told());
  Asked late;
  exchange->on_gone(late.tell);
  EXPECT_TRUE(late.is_told());
  EXPECT_TRUE(taker.told == 1 && other.told == 1 && late.told == 1);
}

INSTANTIATE_TEST_SUITE_P(Orders, HttpGone,
                         testing::Values(Order::kTakerFirst, Order::kTakerLast, Order::kAtOnce));

TEST_F(HttpServing, NobodyIsToldOfAClientThatHasItsAnswer) {
  Asked taker, other, late;
  taken = [&](const Exchanged& e) { e->on_gone(taker.tell), e->on_gone(other.tell); };
  Client client(serve());
  Exchanged exchange = next_request();
  exchange->respond({.body = "all of it"});
  client.read_until("all of it");
  client.go();
  exchange->on_gone(late.tell);
  exchange.reset();
  await_no_connection();
  EXPECT_EQ(taker.told + other.told + late.told, 0);
}

}  // namespace
}  // namespace stretto
