// TCP of the bootstrap: every call ends at a deadline, and no descriptor outlives its owner.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <string>

#include "stretto/runtime/processes/fd.h"
#include "stretto/runtime/processes/bootstrap_address.h"

namespace stretto {

// Rank 0's ear: the bootstrap address's own listener, or one opened at its port. UserError naming
// address and port where that cannot be.
class TcpListener {
 public:
  TcpListener(const BootstrapAddress& at, Deadline deadline);
  int fd() const { return given_ >= 0 ? given_ : opened_.get(); }

 private:
  int given_;
  Fd opened_;
};

// A socket that listens on 127.0.0.1 at a port that was free, for BootstrapAddress::listener.
// Children inherit it. UserError where there is none.
Fd listen_anywhere(int* port);

// Tries again until the deadline, since rank 0 may come later; empty when it did not, and `why`
// then says what the last try came to ("Connection refused"). UserError for an address that does
// not exist.
Fd connect_tcp(const BootstrapAddress& at, Deadline deadline, std::string* why = nullptr);

// False where the other side has closed or the deadline has passed.
bool send_all(int socket, const void* data, std::size_t bytes, Deadline deadline);
bool receive_all(int socket, void* data, std::size_t bytes, Deadline deadline);

}  // namespace stretto
