// One connection of HttpServer on Boost.Beast and Asio. Included by http_beast.cc alone, the one
// file that compiles them.
#pragma once

#define BOOST_ENABLE_ASSERT_HANDLER  // http_beast.cc has it
#include <utility>
// Asio 1.18 needs <utility> first.
#include <fmt/format.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "stretto/server/api_error.h"
#include "stretto/server/http.h"

namespace stretto {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

inline constexpr std::size_t kReadBytes = 4096;
// What a client may send ahead while its last request is being answered.
inline constexpr std::size_t kMaxAhead = std::size_t{64} << 10;
// What may be read and not taken yet beside a header: what no limit of a body counts, such as
// chunks' extensions and trailers, which the parser wants whole.
inline constexpr std::size_t kMaxUnread = std::size_t{128} << 10;

// A body up to this goes along with its head. A longer one is sent from where it lies: to copy one
// of 20 MB takes the thread of all connections 10 ms and more.
inline constexpr std::size_t kCopiedBody = std::size_t{64} << 10;

// Connections beyond the limit that are told so at once; further ones wait for these.
inline constexpr std::size_t kMostTurnedAway = 16;

// How often a connection that is being closed looks whether its client has taken everything, and
// how long it then waits for that client to close first.
inline constexpr std::chrono::milliseconds kLookAgain{20};
inline constexpr std::chrono::milliseconds kWaitForClose{1000};

inline bool has_body(int status) { return status >= 200 && status != 204 && status != 304; }

// How the answer to one request travels.
struct Framing {
  bool is_head = false;      // the request's method
  bool knows_chunks = true;  // HTTP/1.1
  bool keeps_alive = true;
};

inline std::string head_text(const HttpResponse& response, const Framing& framing, bool is_stream) {
  auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(response.status)));
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, std::string(reason.data(), reason.size()));
  if (has_body(response.status)) {
    out += fmt::format("Content-Type: {}\r\n", response.content_type);
    if (!is_stream) {
      out += fmt::format("Content-Length: {}\r\n", response.body.size());
    } else if (framing.knows_chunks) {
      out += "Transfer-Encoding: chunked\r\n";
    }
  }
  for (const auto& [name, value] : response.headers) {
    out += fmt::format("{}: {}\r\n", name, value);
  }
  out += framing.keeps_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return out;
}

inline HttpResponse plain_error(int status, const std::string& message) {
  return ApiError(status, message).response();
}

class Connection;

// The handler's side of a request. Hands everything to the connection on the server's thread.
class Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest request, std::uint64_t number)
      : connection_(std::move(connection)), request_(std::move(request)), number_(number) {}
  ~Exchange() override;

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override;
  void begin_stream(HttpResponse head) override;
  void send(std::string piece) override;
  void end() override;
  void on_gone(std::function<void()> gone) override;

 private:
  template <typename Do>
  void post(Do action);

  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  std::uint64_t number_;  // of the request on its connection
};

// All of it belongs to the thread of run(), except the atomics.
struct HttpServer::State : std::enable_shared_from_this<HttpServer::State> {
  State(const HttpLimits& its_limits, Handler its_handler)
      : limits(its_limits), handler(std::move(its_handler)), acceptor(context), signals(context) {}

  void listen(const std::string& host, std::uint16_t port);
  void accept();
  void accept_later();
  void await_signal();
  void begin_drain();
  void close_all();

  HttpLimits limits;
  Handler handler;
  OnSignal on_signal;
  asio::io_context context{1};
  tcp::acceptor acceptor;
  asio::signal_set signals;
  int num_signals = 0;
  bool said_refusal = false;  // of a connection by the system
  std::string host_text;
  std::uint16_t bound_port = 0;
  std::set<Connection*> connections;
  std::atomic<std::size_t> num_connections{0};
  std::atomic<std::size_t> num_busy{0};  // answers that are made, or not taken yet
  std::atomic<bool> draining{false};
};

// One client. Between requests, and while one is being answered, it reads ahead: an answer's reader
// who goes away is noticed at once.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<HttpServer::State> server, tcp::socket socket)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        read_timer_(server_->context),
        write_timer_(server_->context),
        quiet_timer_(server_->context) {
    server_->connections.insert(this);
    server_->num_connections = server_->connections.size();
  }
  ~Connection() {
    server_->connections.erase(this);
    server_->num_connections = server_->connections.size();
  }

  void start() {
    ErrorCode ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    auto endpoint = socket_.remote_endpoint(ignored);
    if (!ignored) peer_ = endpoint.address().to_string();
    next_request();
  }

  // Too many connections: says so and closes.
  void turn_away() {
    begin_answer();
    framing_ = {.keeps_alive = false};
    write_whole(number_ - 1, plain_error(503, "too many connections"));
  }

  void post(std::function<void()> action) {
    asio::post(server_->context,
               [self = shared_from_this(), action = std::move(action)] { action(); });
  }

  // The answer to request `number`; calls about another one, which has ended, are ignored.
  void write_whole(std::uint64_t number, HttpResponse response) {
    if (!is_answering(number) || is_stream_) return;
    std::string text = head_text(response, framing_, false);
    std::string body;
    if (!framing_.is_head && has_body(response.status)) body = std::move(response.body);
    if (body.size() <= kCopiedBody) text += std::exchange(body, {});
    queue(std::move(text));
    if (!body.empty()) queue(std::move(body));
    finish_answer();
  }
  void begin_stream(std::uint64_t number, const HttpResponse& head) {
    if (!is_answering(number) || is_stream_) return;
    is_stream_ = true;
    if (!framing_.knows_chunks) framing_.keeps_alive = false;
    queue(head_text(head, framing_, true));
    idle_piece_ = head.idle_piece;
    break_silence(number);
  }
  void write_piece(std::uint64_t number, const std::string& piece) {
    if (!is_answering(number) || !is_stream_ || piece.empty() || framing_.is_head) return;
    if (framing_.knows_chunks) {
      queue(fmt::format("{:x}\r\n", piece.size()) + piece + "\r\n");
    } else {
      queue(piece);
    }
  }
  void end_stream(std::uint64_t number) {
    if (!is_answering(number) || !is_stream_) return;
    if (framing_.knows_chunks && !framing_.is_head) queue("0\r\n\r\n");
    finish_answer();
  }
  // Its last owner has let go.
  void forget(std::uint64_t number) {
    if (!is_answering(number)) return;
    if (is_stream_) return close();  // cut off, which the client sees
    HttpResponse lost = plain_error(500, "the request was lost");
    write_whole(number, std::move(lost));
  }
  void when_gone(std::uint64_t number, std::function<void()> gone) {
    if (is_answering(number)) {
      // Beside what was asked before: of two threads that ask, the later may come first.
      if (!gone_) {
        gone_ = std::move(gone);
      } else {
        gone_ = [first = std::move(gone_), then = std::move(gone)] { first(), then(); };
      }
    } else if (number + 1 == number_ && closed_ && !answered_) {
      gone();
    }
  }

  // What is being read, answered or written goes on. What the system has of earlier answers is sent
  // to its end.
  void begin_drain() {
    const bool is_idle = !answering_ && outbox_.empty() && writing_.empty() && !reading_;
    if (closed_ || closing_ || !is_idle) return;
    if (num_untaken() == 0) return close();
    be_busy(true);
    close_gently();
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    ErrorCode ignored;
    read_timer_.cancel();
    write_timer_.cancel();
    quiet_timer_.cancel();
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
    be_busy(false);
    if (!answering_) return;
    answering_ = false;
    if (gone_) std::exchange(gone_, {})();
  }

 private:
  bool is_answering(std::uint64_t number) const { return answering_ && number + 1 == number_; }

  void arm(asio::steady_timer& timer, std::chrono::milliseconds limit) {
    timer.expires_after(limit);
    timer.async_wait([weak = weak_from_this()](ErrorCode error) {
      auto self = weak.lock();
      if (!error && self) self->close();
    });
  }

  void next_request() {
    if (closed_) return;
    be_busy(false);
    if (server_->draining) return begin_drain();
    if (buffer_.size() > 0 && watching_) {  // what was sent ahead comes first
      ErrorCode ignored;
      stops_watching_ = true;
      socket_.cancel(ignored);
      return;
    }
    if (buffer_.size() > 0) return read_header();
    arm(read_timer_, server_->limits.idle_timeout);
    watch();
  }

  // Reads whatever comes next, one read at a time.
  void watch() {
    if (watching_ || closed_ || buffer_.size() >= kMaxAhead) return;
    watching_ = true;
    socket_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this()](ErrorCode error, std::size_t bytes) {
                              self->watching_ = false;
                              bool stops = std::exchange(self->stops_watching_, false);
                              if (error && !(stops && error == asio::error::operation_aborted))
                                return self->close();
                              self->buffer_.commit(bytes);
                              if (self->closing_) return self->swallow();
                              if (self->answering_) return self->watch();
                              self->read_header();
                            });
  }

  void read_header() {
    if (watching_ || closed_) return;
    reading_ = true;
    buffer_.max_size(std::max(server_->limits.max_header_bytes, kMaxAhead) + kMaxUnread);
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(server_->limits.max_header_bytes));
    parser_->body_limit(server_->limits.max_body_bytes);
    arm(read_timer_, server_->limits.header_timeout);
    http::async_read_header(
        socket_, buffer_, *parser_,
        [self = shared_from_this()](ErrorCode error, std::size_t) { self->header_read(error); });
  }

  void header_read(ErrorCode error) {
    if (error) return refuse(error);
    const auto& message = parser_->get();
    framing_ = {.is_head = message.method() == http::verb::head,
                .knows_chunks = message.version() >= 11,
                .keeps_alive = message.keep_alive()};
    auto count = static_cast<std::size_t>(std::distance(message.begin(), message.end()));
    if (count > server_->limits.max_headers) {
      return refuse_with(
          431, fmt::format("{} headers, at most {} are read", count, server_->limits.max_headers));
    }
    if (message.count(http::field::content_length) > 1 ||
        message.count(http::field::transfer_encoding) > 1) {
      return refuse_with(400, "the length of the body is given more than once");
    }
    // Beside a length the parser passes over what it does not know, and two readers would differ.
    if (auto coding = message.find(http::field::transfer_encoding);
        coding != message.end() && !boost::beast::iequals(coding->value(), "chunked")) {
      return refuse_with(501, "Transfer-Encoding: only 'chunked' is read");
    }
    if (auto coding = message.find(http::field::content_encoding);
        coding != message.end() && !boost::beast::iequals(coding->value(), "identity")) {
      return refuse_with(415, "Content-Encoding: only bodies that are not encoded are read");
    }
    if (const std::size_t hosts = message.count(http::field::host);
        hosts > 1 || (hosts == 0 && message.version() >= 11)) {  // RFC 9112, 3.2
      return refuse_with(400, hosts == 0 ? "the header Host is missing" : "several headers Host");
    }
    arm(read_timer_, server_->limits.body_timeout);
    auto expect = message[http::field::expect];
    if (!expect.empty() && equal_in_any_case({expect.data(), expect.size()}, "100-continue")) {
      queue("HTTP/1.1 100 Continue\r\n\r\n");
    }
    http::async_read(socket_, buffer_, *parser_,
                     [self = shared_from_this()](ErrorCode failed, std::size_t) {
                       if (failed) return self->refuse(failed);
                       self->dispatch();
                     });
  }

  void refuse(ErrorCode error) {
    if (error == http::error::header_limit) {
      return refuse_with(
          431, fmt::format("headers of more than {} bytes", server_->limits.max_header_bytes));
    }
    if (error == http::error::body_limit) {
      return refuse_with(
          413, fmt::format("a body of more than {} bytes", server_->limits.max_body_bytes));
    }
    if (error == http::error::buffer_overflow) {
      return refuse_with(431, "a chunk's extensions or trailers are too long");
    }
    bool is_text = error.category() == http::make_error_code(http::error::bad_method).category();
    if (!is_text || error == http::error::end_of_stream || error == http::error::partial_message) {
      return close();
    }
    refuse_with(400, "not a request of HTTP/1.1: " + error.message());
  }

  void refuse_with(int status, const std::string& message) {
    begin_answer();
    framing_.keeps_alive = false;
    write_whole(number_ - 1, plain_error(status, message));
  }

  void begin_answer() {
    reading_ = false;
    answering_ = true;
    answered_ = false;
    is_stream_ = false;
    ++number_;
    be_busy(true);
    read_timer_.cancel();
  }

  void dispatch() {
    auto message = parser_->release();
    HttpRequest request{.method = std::string(message.method_string()),
                        .path = std::string(message.target()),
                        .body = std::move(message.body()),
                        .peer = peer_};
    // The whole URL, as to a proxy, has to be taken, too (RFC 9112, 3.2.2).
    constexpr std::string_view kScheme = "http://";
    if (equal_in_any_case(std::string_view(request.path).substr(0, kScheme.size()), kScheme)) {
      request.path.erase(
          0, std::min(request.path.find_first_of("/?", kScheme.size()), request.path.size()));
      if (!request.path.starts_with('/')) request.path.insert(0, 1, '/');
    }
    if (auto at = request.path.find('?'); at != std::string::npos) {
      request.query = request.path.substr(at + 1);
      request.path.resize(at);
    }
    for (const auto& field : message) {
      request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    }
    begin_answer();
    watch();
    if (closed_) return;
    server_->handler(
        std::make_shared<Exchange>(shared_from_this(), std::move(request), number_ - 1));
  }

  // Says the idle piece whenever nothing has been said for long enough, until the answer ends.
  void break_silence(std::uint64_t number) {
    const auto after = server_->limits.idle_piece_after;
    if (idle_piece_.empty() || after.count() <= 0 || !is_answering(number)) return;
    quiet_timer_.expires_at(said_ + after);
    quiet_timer_.async_wait([weak = weak_from_this(), number, after](ErrorCode error) {
      auto self = weak.lock();
      if (error || !self || !self->is_answering(number)) return;
      if (std::chrono::steady_clock::now() - self->said_ >= after) {
        self->said_ = std::chrono::steady_clock::now();
        // Not to a client that has not taken the last one.
        if (self->writing_.empty()) self->write_piece(number, self->idle_piece_);
      }
      self->break_silence(number);
    });
  }

  void finish_answer() {
    if (closed_) return;  // too much of it waited
    quiet_timer_.cancel();
    answering_ = false;
    answered_ = true;
    gone_ = {};
    if (writing_.empty()) after_writing();
  }

  void queue(std::string text) {
    if (closed_) return;
    // What waits counts, not what comes: an answer may be large.
    if (outbox_.size() > server_->limits.max_outbox_bytes) return close();
    if (outbox_.empty()) {
      outbox_ = std::move(text);
    } else {
      outbox_ += text;
    }
    said_ = std::chrono::steady_clock::now();
    if (writing_.empty()) write();
  }

  void write() {
    writing_ = std::exchange(outbox_, {});
    arm(write_timer_, server_->limits.write_timeout);
    write_some(0);
  }

  // Piece by piece, each with the whole time: only a client that takes nothing runs out of it.
  void write_some(std::size_t from) {
    socket_.async_write_some(asio::buffer(writing_.data() + from, writing_.size() - from),
                             [self = shared_from_this(), from](ErrorCode error, std::size_t bytes) {
                               if (error) return self->close();
                               if (from + bytes < self->writing_.size()) {
                                 self->arm(self->write_timer_, self->server_->limits.write_timeout);
                                 return self->write_some(from + bytes);
                               }
                               self->write_timer_.cancel();
                               self->writing_.clear();
                               if (!self->outbox_.empty()) return self->write();
                               self->after_writing();
                             });
  }

  // Everything that there was to say has been handed over.
  void after_writing() {
    if (closed_ || answering_ || reading_) return;
    if (!framing_.keeps_alive || server_->draining) return close_gently();
    next_request();
  }

  // Tells the client that nothing more comes, and leaves it a moment to read what did: closing
  // beside unread input would take the answer away from it.
  void close_gently() {
    closing_ = true;
    ErrorCode ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    untaken_ = std::numeric_limits<std::size_t>::max();
    close_once_taken();
    if (!closed_) swallow();
  }
  // A client that takes something has time to take the rest. One that has all of it is to close,
  // for which a server that ends does not wait.
  void close_once_taken() {
    const auto now = std::chrono::steady_clock::now();
    const std::size_t untaken = num_untaken();
    if (untaken != untaken_) took_ = now;
    untaken_ = untaken;
    auto limit = server_->draining ? std::chrono::milliseconds(0) : kWaitForClose;
    if (untaken > 0) limit = server_->limits.write_timeout;
    if (now - took_ >= limit) return close();
    read_timer_.expires_after(kLookAgain);
    read_timer_.async_wait([weak = weak_from_this()](ErrorCode error) {
      auto self = weak.lock();
      if (!error && self && !self->closed_) self->close_once_taken();
    });
  }
  // Bytes that were written and that the client's system has not acknowledged.
  std::size_t num_untaken() {
    int bytes = 0;
    const bool is_known = ::ioctl(socket_.native_handle(), TIOCOUTQ, &bytes) == 0;
    return is_known ? static_cast<std::size_t>(bytes) : 0;
  }

  void be_busy(bool is_busy) {
    if (std::exchange(busy_, is_busy) == is_busy) return;
    is_busy ? ++server_->num_busy : --server_->num_busy;
  }

  void swallow() {
    buffer_.consume(buffer_.size());
    if (watching_ || closed_) return;
    watching_ = true;
    socket_.async_read_some(buffer_.prepare(kReadBytes),
                            [self = shared_from_this()](ErrorCode error, std::size_t) {
                              self->watching_ = false;
                              if (error) return self->close();
                              self->swallow();
                            });
  }

  std::shared_ptr<HttpServer::State> server_;
  tcp::socket socket_;
  asio::steady_timer read_timer_, write_timer_, quiet_timer_;
  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::string peer_;
  Framing framing_;
  std::string writing_, outbox_, idle_piece_;
  std::chrono::steady_clock::time_point said_;  // when something was added to the outbox
  std::size_t untaken_ = 0;                     // num_untaken() when it was last looked at ...
  std::chrono::steady_clock::time_point took_;  // ... and when it last changed
  std::function<void()> gone_;
  std::uint64_t number_ = 0;     // requests that were read
  bool watching_ = false;        // an async_read_some is under way ...
  bool stops_watching_ = false;  // ... and is being called off
  bool closing_ = false;         // nothing more is answered
  bool reading_ = false;         // a request is being read
  bool answering_ = false;       // its answer has not ended
  bool answered_ = false;        // the last request's has
  bool is_stream_ = false;
  bool busy_ = false;  // counted in num_busy
  bool closed_ = false;
};

}  // namespace stretto
