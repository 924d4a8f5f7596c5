#include "apps/load_client.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostHeaderBytes = 64 << 10, kMostLineBytes = 16 << 20;

// What goes wrong with a server is the answer's failure.
class Failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Connection {
 public:
  // `timeout_s`: of each call below without a byte.
  Connection(const ServerAddress& server, double timeout_s) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (int error = ::getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found)) {
      throw Failed(fmt::format("{}: {}", server.host, ::gai_strerror(error)));
    }
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    for (const addrinfo* a = found; a != nullptr && socket_ < 0; a = a->ai_next) {
      socket_ = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
      if (socket_ >= 0 && ::connect(socket_, a->ai_addr, a->ai_addrlen) != 0) close();
    }
    if (socket_ < 0) throw Failed("cannot connect");
    int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const auto us = static_cast<std::int64_t>(timeout_s * 1e6);
    timeval timeout{.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  }
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(std::string_view text) {
    while (!text.empty()) {
      ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        throw Failed("the server takes nothing");
      }
      if (sent <= 0) throw Failed("the server closed the connection");
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  // Up to and without a line feed, or a carriage return before it.
  std::string line(std::size_t most) {
    std::size_t end = 0;
    while ((end = held_.find('\n')) == std::string::npos) {
      if (held_.size() > most) throw Failed("a line of the answer is too long");
      if (!receive()) throw Failed("the answer was cut off");
    }
    std::string out = held_.substr(0, end);
    held_.erase(0, end + 1);
    if (out.ends_with('\r')) out.pop_back();
    return out;
  }
  std::string bytes(std::size_t count) {
    while (held_.size() < count) {
      if (!receive()) throw Failed("the answer was cut off");
    }
    std::string out = held_.substr(0, count);
    held_.erase(0, count);
    return out;
  }
  // What has come, or comes next; empty: the end.
  std::string some() {
    if (held_.empty()) receive();
    return std::exchange(held_, {});
  }

 private:
  bool receive() {
    std::array<char, 16384> buffer;
    ssize_t count = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (count < 0) throw Failed("the server says nothing");
    held_.append(buffer.data(), static_cast<std::size_t>(count));
    return count > 0;
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  int socket_ = -1;
  std::string held_;
};

struct Head {
  int status = 0;
  bool chunked = false;
  std::int64_t length = -1;
};

Head read_head(Connection& connection) {
  Head head;
  std::string first = connection.line(kMostHeaderBytes);
  if (first.size() < 12 || !first.starts_with("HTTP/1.")) throw Failed("no HTTP answer");
  std::from_chars(first.data() + 9, first.data() + 12, head.status);
  for (std::string line; !(line = connection.line(kMostHeaderBytes)).empty();) {
    for (char& c : line) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (line.starts_with("transfer-encoding:")) head.chunked = line.ends_with("chunked");
    constexpr std::string_view kLength = "content-length:";
    if (!line.starts_with(kLength)) continue;
    std::size_t at = line.find_first_not_of(' ', kLength.size());
    if (at != std::string::npos) {
      std::from_chars(line.data() + at, line.data() + line.size(), head.length);
    }
  }
  return head;
}

// Hands over the body as it comes.
void read_body(Connection& connection, const Head& head,
               const std::function<void(std::string)>& piece) {
  if (!head.chunked && head.length >= 0) {
    return piece(connection.bytes(static_cast<std::size_t>(head.length)));
  }
  if (!head.chunked) {
    for (std::string some; !(some = connection.some()).empty();) piece(some);
    return;
  }
  for (;;) {
    std::string line = connection.line(kMostHeaderBytes);
    std::size_t size = 0;
    auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), size, 16);
    if (error != std::errc() || size > kMostLineBytes) throw Failed("a chunk without a size");
    if (size == 0) return;
    piece(connection.bytes(size));
    connection.line(kMostHeaderBytes);
  }
}

std::string own_headers(const ServerAddress& server) {
  std::string out = fmt::format("Host: {}:{}\r\nConnection: close\r\n", server.host, server.port);
  if (!server.api_key.empty()) out += fmt::format("Authorization: Bearer {}\r\n", server.api_key);
  return out;
}

void check_status(const Head& head, const std::string& body) {
  if (head.status == 200) return;
  throw Failed(fmt::format("status {}: {}", head.status, printable(body)));
}

// An event of the stream.
void take_event(const std::string& data, LoadAnswer& answer, double now) {
  Json event = parse_json(data, "the answer");
  if (event.contains("error")) throw Failed(printable(to_line(event.at("error"))));
  if (event.contains("choices") && !event.at("choices").empty() && answer.first_token_s == 0) {
    answer.first_token_s = now;
  }
  if (event.contains("usage") && event.at("usage").is_object()) {
    answer.tokens = event.at("usage").value("completion_tokens", std::int64_t{0});
  }
}

}  // namespace

ServerAddress server_address(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : "";
  if (rest.ends_with('/')) rest.pop_back();
  std::size_t colon = rest.rfind(':');
  ServerAddress out{.host = rest.substr(0, colon), .port = "80"};
  if (colon != std::string::npos) out.port = rest.substr(colon + 1);
  bool digits = out.port.find_first_not_of("0123456789") == std::string::npos;
  if (out.host.empty() || out.port.empty() || !digits || rest.find('/') != std::string::npos) {
    throw UserError(fmt::format("--url: {}: need http://HOST:PORT", printable(url)));
  }
  return out;
}

std::string first_model(const ServerAddress& server) {
  try {
    Connection connection(server, LoadRequest().timeout_s);
    connection.send("GET /v1/models HTTP/1.1\r\n" + own_headers(server) + "\r\n");
    Head head = read_head(connection);
    std::string body;
    read_body(connection, head, [&](const std::string& piece) { body += piece; });
    check_status(head, body);
    return parse_json(body, "/v1/models").at("data").at(0).at("id").get<std::string>();
  } catch (const std::exception& e) {
    throw UserError(fmt::format("http://{}:{}: {}", server.host, server.port, e.what()));
  }
}

LoadAnswer ask(const ServerAddress& server, const LoadRequest& request) {
  LoadAnswer answer;
  const auto begin = Clock::now();
  auto now = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  try {
    Connection connection(server, request.timeout_s);
    std::string body = to_line({{"model", request.model},
                                {"prompt", request.prompt},
                                {"max_tokens", request.max_tokens},
                                {"temperature", 0},
                                {"ignore_eos", true},
                                {"stream", true},
                                {"stream_options", {{"include_usage", true}}}});
    connection.send(
        fmt::format("POST /v1/completions HTTP/1.1\r\n{}Content-Type: "
                    "application/json\r\nContent-Length: {}\r\n\r\n{}",
                    own_headers(server), body.size(), body));
    Head head = read_head(connection);
    bool done = false;
    double last_news_s = now();
    std::string text;
    read_body(connection, head, [&](const std::string& piece) {
      text += piece;
      if (head.status != 200) return;
      for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos;) {
        std::string line = text.substr(0, end);
        text.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        if (!line.starts_with("data: ")) continue;
        last_news_s = now();
        if (line == "data: [DONE]") done = true;
        if (!done) take_event(line.substr(6), answer, now());
      }
      // Comments keep the connection, and tell nothing.
      if (now() - last_news_s > request.timeout_s) throw Failed("the server has no news");
    });
    check_status(head, text);
    if (!done) throw Failed("the stream has no end");
  } catch (const std::exception& e) {
    answer.failure = e.what();
  }
  answer.whole_s = now();
  return answer;
}

}  // namespace stretto
