// Bytes over a connection, as anybody may send them: the same bytes get the same answers however
// they are cut into packets, no 5xx but 501, and afterwards nothing of the connection is left.
// A body is read as the requests that the API takes. The first bytes say how it is cut.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "stretto/base/errors.h"
#include "stretto/server/api_error.h"
#include "stretto/server/chat_request.h"
#include "stretto/server/completion_request.h"
#include "stretto/server/http.h"
#include "stretto/server/responses_request.h"

namespace {

using stretto::HttpExchange;
using stretto::HttpLimits;
using stretto::HttpServer;

void expect(bool holds) {
  if (!holds) __builtin_trap();
}

// As server.cc answers, without a model.
stretto::HttpResponse answer_of(const stretto::HttpRequest& request) {
  constexpr int kVocabulary = 4096;
  const stretto::SamplingDefaults defaults;
  try {
    if (request.path == "/c") parse_completion_request(request.body, defaults, kVocabulary);
    if (request.path == "/m") parse_chat_request(request.body, defaults, kVocabulary);
    if (request.path == "/r") parse_responses_request(request.body, defaults, kVocabulary);
  } catch (const stretto::ApiError& e) {
    return e.response();
  } catch (const stretto::UserError& e) {
    return stretto::ApiError(400, e.what()).response();
  }
  return {.body = request.method + ' ' + std::to_string(request.body.size())};
}

void answer(const std::shared_ptr<HttpExchange>& exchange) {
  const stretto::HttpRequest& request = exchange->request();
  request.header("authorization");
  if (request.path != "/s") return exchange->respond(answer_of(request));
  exchange->begin_stream({.content_type = "text/event-stream"});
  exchange->send("a");
  exchange->send(request.query);
  exchange->end();
}

class Running {
 public:
  Running() : thread_([this] { server_.run(); }) {}
  ~Running() {
    server_.stop();
    thread_.join();
  }

  // What comes back for the text, in pieces of up to `most` bytes, until the server closes.
  std::string talk(std::string_view text, std::size_t most) {
    const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(server_.port())};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    expect(::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const int on = 1;
    ::setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const linger no_wait{.l_onoff = 1, .l_linger = 0};  // ports are free again at once
    ::setsockopt(client, SOL_SOCKET, SO_LINGER, &no_wait, sizeof(no_wait));
    std::string out;
    while (!text.empty()) {
      const auto sent = ::send(client, text.data(), std::min(most, text.size()), MSG_NOSIGNAL);
      if (sent <= 0) break;
      text.remove_prefix(static_cast<std::size_t>(sent));
      std::this_thread::yield();
    }
    ::shutdown(client, SHUT_WR);
    char buffer[4096];
    for (ssize_t got = 0; (got = ::recv(client, buffer, sizeof(buffer), 0)) > 0;) {
      out.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(client);
    return out;
  }

  // Nothing is left of the clients.
  void expect_nobody() const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (server_.num_connections() > 0) {
      expect(std::chrono::steady_clock::now() < end);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  HttpServer server_{
      "127.0.0.1", 0,
      HttpLimits{.max_body_bytes = 4096, .max_header_bytes = 1024, .max_headers = 12}, answer};
  std::thread thread_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  static Running server;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = server.talk(text, text.size() + 1);
  const std::string pieces = server.talk(text, 1 + data[0] % 32);
  expect(whole.empty() || whole.starts_with("HTTP/1.1 "));
  std::size_t failure = whole.find("HTTP/1.1 5");
  // But for transfer codings that are not read; the connection ends with that.
  if (failure != whole.npos && whole.compare(failure, 13, "HTTP/1.1 501 ") == 0) {
    failure = whole.find("HTTP/1.1 5", failure + 1);
  }
  expect(failure == whole.npos);
  // Both may lack an end where the server closed while the client was still sending.
  expect(whole.starts_with(pieces) || pieces.starts_with(whole));
  server.expect_nobody();
  return 0;
}
