// Where the processes of a world find each other before they share anything: rank 0 listens on a
// TCP port, the others come to it. What torchrun and `stretto launch` put into the environment.
#pragma once

#include <optional>
#include <string>

namespace stretto {

struct BootstrapAddress {
  int rank = 0;
  int size = 1;
  std::string address = "127.0.0.1";  // rank 0's: a name or number of this host
  int port = 0;                       // 1..65535, ours alone
  // Rank 0: a listening socket at that port, made by somebody who could choose the port freely;
  // -1: rank 0 opens the port. It stays open, for further worlds.
  int listener = -1;
  std::string job;  // tells jobs on one host apart: a process of another job is turned away
};

// Reads RANK, WORLD_SIZE, MASTER_ADDR (default 127.0.0.1), STRETTO_MASTER_PORT or else MASTER_PORT,
// STRETTO_LISTENER and TORCHELASTIC_RUN_ID. Under torchrun MASTER_PORT is taken by its own store,
// so the port is derived from it (derived_port). Nothing where RANK and WORLD_SIZE are both unset;
// UserError naming the variable that is missing or wrong.
std::optional<BootstrapAddress> bootstrap_address_of_environment();

// The port of ours that belongs to MASTER_PORT: 1717 further, back into 1024..65535.
int derived_port(int master_port);

}  // namespace stretto
