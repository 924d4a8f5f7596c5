// Where ranks meet. A user who loses this has worlds that now and then are not made, or a minute
// later.
#include "stretto/runtime/processes/tcp.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <chrono>

#include "stretto/base/errors.h"

namespace stretto {
namespace {

using std::chrono::milliseconds;

int own_port(const Fd& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

// Closed first by who connected, whose port the system then keeps for a minute.
TEST(Tcp, RankZeroListensWhereAConnectionOfOursHasJustEnded) {
  constexpr int kMost = 8;  // once the port is free another process may take it
  for (int round = 1;; ++round) {
    BootstrapAddress at{.address = "127.0.0.1"};
    Fd listener = listen_anywhere(&at.port);
    Fd guest = connect_tcp(at, deadline_in(milliseconds(5000)));
    ASSERT_TRUE(guest);
    Fd host(::accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(host);
    BootstrapAddress next{.address = "127.0.0.1", .port = own_port(guest)};
    guest.reset();
    char end = 0;
    EXPECT_FALSE(receive_all(host.get(), &end, 1, deadline_in(milliseconds(5000))));
    host.reset();
    try {
      TcpListener again(next, deadline_in(milliseconds(100)));
      EXPECT_GE(again.fd(), 0);
      EXPECT_TRUE(connect_tcp(next, deadline_in(milliseconds(5000))));
      return;
    } catch (const UserError&) {
      if (round == kMost) throw;
    }
  }
}

}  // namespace
}  // namespace stretto
