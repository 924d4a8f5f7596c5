// HTTP/1.1 for many connections on one thread, most of them idle streams. Knows nothing of models:
// a handler gets whole requests and answers them at once, later from any thread, or piece by piece.
//
// Everything that comes over a socket is hostile until parsed: sizes, counts and times are bounded
// by HttpLimits, and what two readers could read differently is refused. Before: sockets. After:
// server.h, which routes requests.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stretto {

struct HttpLimits {
  std::size_t max_body_bytes = std::size_t{32} << 20;
  std::size_t max_header_bytes = std::size_t{16} << 10;
  std::size_t max_headers = 100;
  std::size_t max_connections = 4096;
  // Of an answer in pieces that a client is slow to take; beyond, the connection is closed.
  std::size_t max_outbox_bytes = std::size_t{16} << 20;
  std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte
  std::chrono::milliseconds body_timeout{60'000};    // from the end of its header
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds write_timeout{30'000};   // without the client taking anything
  // Without anything to say in a stream, until its head's idle_piece is said; 0: never.
  std::chrono::milliseconds idle_piece_after{15'000};
};

// ASCII, as names of headers and schemes are.
bool equal_in_any_case(std::string_view a, std::string_view b);

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "POST"
  std::string path;    // "/v1/completions", without the query
  std::string query;   // "limit=3", still encoded
  HttpHeaders headers;
  std::string body;
  std::string peer;  // address of the client

  // The first header of that name, which is compared without case.
  std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers = {};  // beside those that the server sets
  // Of a stream's head: a piece without a meaning, so that nobody on the way takes the connection
  // for dead while an answer waits. Empty: none.
  std::string idle_piece = {};
};

// One request and its answer. All members may be called from any thread; what comes after the end
// of the answer, or after the client has gone, is ignored. A request whose last owner lets go of it
// unanswered gets a 500.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The whole answer.
  virtual void respond(HttpResponse response) = 0;
  // Or its head (whose body is ignored), then pieces, then the end. Pieces that pile up while the
  // client is slow travel together.
  virtual void begin_stream(HttpResponse head) = 0;
  virtual void send(std::string piece) = 0;
  virtual void end() = 0;
  // Called once on the server's thread if the client goes before the answer has ended, at once
  // where it has gone. Must not block. Whoever asks is told, also where several do.
  virtual void on_gone(std::function<void()> gone) = 0;
};

class HttpServer {
 public:
  // Called on the server's thread; must not block.
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;
  // Called on the server's thread for the first SIGTERM or SIGINT and for the second.
  using OnSignal = std::function<void(int count)>;

  // Listens at once. `port` 0 takes a free one. UserError where the address cannot be had.
  HttpServer(const std::string& host, std::uint16_t port, const HttpLimits& limits,
             Handler handler);
  ~HttpServer();  // as stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  // "http://127.0.0.1:8000"
  std::string url() const;
  std::size_t num_connections() const;

  // Takes SIGTERM and SIGINT from now on.
  void handle_signals(OnSignal on_signal);
  // Serves on the calling thread until stop().
  void run();

  // From any thread. No new connections; idle ones are closed, others once their clients' systems
  // have all of their answers.
  void drain();
  // True once nothing is being answered or sent after drain().
  bool drained() const;
  // Closes everything; run() returns.
  void stop();

  struct State;  // of the implementation

 private:
  std::shared_ptr<State> state_;
};

}  // namespace stretto
