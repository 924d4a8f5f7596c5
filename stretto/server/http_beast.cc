// HttpServer on Boost.Beast and Asio, the one file that compiles them.
#include "stretto/base/errors.h"
#include "stretto/base/log.h"
#include "stretto/server/http_connection.h"

namespace boost {

// What Boost takes for impossible in what a client sent ends that client's connection, not the
// server. One of these assertions is wrong: the last of a body's chunks, cut behind its first line,
// may have three or four bytes, and going on is right.
void assertion_failed(char const* expression, char const* function, char const* file, long line) {
  if (std::string_view(expression) == "n >= 5") return;
  throw stretto::InternalError(
      fmt::format("{}:{}: {}: {} does not hold", file, line, function, expression));
}
void assertion_failed_msg(char const* expression, char const*, char const* function,
                          char const* file, long line) {
  assertion_failed(expression, function, file, line);
}

}  // namespace boost

namespace stretto {

bool equal_in_any_case(std::string_view a, std::string_view b) {
  return boost::beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_in_any_case(key, name)) return value;
  }
  return std::nullopt;
}

Exchange::~Exchange() {
  // The reference goes along: a connection ends on the server's thread.
  Connection& connection = *connection_;
  connection.post([c = std::move(connection_), n = number_] { c->forget(n); });
}
template <typename Do>
void Exchange::post(Do action) {
  connection_->post(std::move(action));
}
void Exchange::respond(HttpResponse response) {
  post([c = connection_.get(), n = number_, response = std::move(response)]() mutable {
    c->write_whole(n, std::move(response));
  });
}
void Exchange::begin_stream(HttpResponse head) {
  post([c = connection_.get(), n = number_, head = std::move(head)] { c->begin_stream(n, head); });
}
void Exchange::send(std::string piece) {
  post(
      [c = connection_.get(), n = number_, piece = std::move(piece)] { c->write_piece(n, piece); });
}
void Exchange::end() {
  post([c = connection_.get(), n = number_] { c->end_stream(n); });
}
void Exchange::on_gone(std::function<void()> gone) {
  post([c = connection_.get(), n = number_, gone = std::move(gone)]() mutable {
    c->when_gone(n, std::move(gone));
  });
}

void HttpServer::State::listen(const std::string& host, std::uint16_t port) {
  auto fail = [&](const std::string& what) {
    throw UserError(fmt::format("cannot listen on {}:{}: {}", host, port, what));
  };
  ErrorCode error;
  tcp::resolver resolver(context);
  auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) fail(error ? error.message() : "no such address");
  tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) fail(error.message());
  bound_port = acceptor.local_endpoint().port();
  host_text = endpoint.address().is_v6() ? "[" + host + "]" : host;
}

void HttpServer::State::accept_later() {
  auto pause = std::make_shared<asio::steady_timer>(context);
  pause->expires_after(std::chrono::milliseconds(50));
  pause->async_wait([self = shared_from_this(), pause](ErrorCode) {
    if (self->acceptor.is_open()) self->accept();
  });
}

void HttpServer::State::accept() {
  if (connections.size() >= limits.max_connections &&
      connections.size() - limits.max_connections >= kMostTurnedAway) {
    return accept_later();
  }
  acceptor.async_accept([self = shared_from_this()](ErrorCode error, tcp::socket socket) {
    if (!self->acceptor.is_open()) return;
    if (error) {  // of descriptors or memory: others may be given back meanwhile
      if (!std::exchange(self->said_refusal, true)) {
        log_warning(
            fmt::format("a connection cannot be accepted: {}; such are tried again every "
                        "50 ms, which is said once",
                        error.message()));
      }
      return self->accept_later();
    }
    bool full = self->connections.size() >= self->limits.max_connections;
    auto connection = std::make_shared<Connection>(self, std::move(socket));
    if (full) {
      connection->turn_away();
    } else {
      connection->start();
    }
    self->accept();
  });
}

void HttpServer::State::await_signal() {
  signals.async_wait([self = shared_from_this()](ErrorCode error, int) {
    if (error) return;
    self->on_signal(++self->num_signals);
    self->await_signal();
  });
}

void HttpServer::State::begin_drain() {
  draining = true;
  ErrorCode ignored;
  acceptor.close(ignored);
  for (Connection* connection : std::vector(connections.begin(), connections.end())) {
    connection->begin_drain();
  }
}

void HttpServer::State::close_all() {
  ErrorCode ignored;
  acceptor.close(ignored);
  signals.cancel(ignored);
  for (Connection* connection : std::vector(connections.begin(), connections.end())) {
    connection->close();
  }
}

HttpServer::HttpServer(const std::string& host, std::uint16_t port, const HttpLimits& limits,
                       Handler handler) {
  try {  // a few descriptors, which there may not be (ulimit -n)
    state_ = std::make_shared<State>(limits, std::move(handler));
  } catch (const boost::system::system_error& e) {
    throw UserError(fmt::format("cannot listen on {}:{}: {}", host, port, e.what()));
  }
  state_->listen(host, port);
}

HttpServer::~HttpServer() {
  state_->close_all();
  state_->context.restart();
  state_->context.poll();  // what was under way ends, and lets go of the state
}

std::uint16_t HttpServer::port() const { return state_->bound_port; }
std::string HttpServer::url() const {
  return fmt::format("http://{}:{}", state_->host_text, state_->bound_port);
}
std::size_t HttpServer::num_connections() const { return state_->num_connections; }

void HttpServer::handle_signals(OnSignal on_signal) {
  state_->on_signal = std::move(on_signal);
  state_->signals.add(SIGTERM);
  state_->signals.add(SIGINT);
  state_->await_signal();
}

void HttpServer::run() {
  state_->accept();
  for (;;) {
    try {
      state_->context.run();
      return;
    } catch (const std::exception& e) {  // of a handler: ends its request, not the server
      log_warning(fmt::format("a request failed: {}", e.what()));
    }
  }
}

void HttpServer::drain() {
  asio::post(state_->context, [state = state_] { state->begin_drain(); });
}
bool HttpServer::drained() const { return state_->draining && state_->num_busy == 0; }
void HttpServer::stop() {
  asio::post(state_->context, [state = state_] {
    state->close_all();
    state->context.stop();
  });
}

}  // namespace stretto
