// The other processes of a world, as one of them sees them: passes memory to them, and notices when
// one ends. A thread of its own reads all sockets, so that nobody has to be in a call for that.
// A peer that ends without farewell has died; that is seen at its socket and, because a child that
// it forked may hold that open, at its process too.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "stretto/runtime/processes/fd.h"

namespace stretto {

enum class PeerState : std::uint8_t { kHere, kLeft, kDied };

// Which memory: `id` counts within the world `world`.
struct MemoryKey {
  std::uint64_t world = 0, id = 0;
  auto operator<=>(const MemoryKey&) const = default;
};

// For who goes before there are Peers, because of rank `blamed`.
void say_farewell(int socket, int blamed);
// Whether the peer behind a socket over which nothing else has been said has gone, and because of
// which rank, -1 where it did not say.
std::optional<int> farewell_of(int socket);

class Peers {
 public:
  // sockets[r] leads to rank r (connect_peers).
  Peers(int rank, std::vector<Fd> sockets);
  // Says farewell, except in a child of fork().
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  PeerState state(int rank) const;
  // The index of the first of these ranks that has died, else of one because of which another has
  // left, else of one that has left; -1: all are here. Who goes because another has gone is thus
  // not taken for the cause.
  int first_gone(const std::vector<int>& ranks) const;

  // Because of whom this process will leave, to be said in its farewell; a rank that has died need
  // not be named.
  void blame(int rank) { blamed_.store(rank, std::memory_order_release); }

  // Passes a descriptor on. Returns whether it was sent before the deadline; a peer that is gone
  // counts as sent to, since its end is reported elsewhere.
  bool send(int to, const MemoryKey& key, int fd, Deadline deadline);
  // Waits for what `from` sends; empty when the deadline passes, the peer is gone or `aborts`.
  Fd receive(int from, const MemoryKey& key, Deadline deadline,
             const std::function<bool()>& aborts);
  // Closes what has come for that world with an id below `below` and was not taken.
  void discard(std::uint64_t world, std::uint64_t below);

  // Calls on_death(rank, process id) once for every rank that has died or dies, on any thread,
  // until unwatch(token) has returned.
  int watch(std::function<void(int, int)> on_death);
  void unwatch(int token);

 private:
  struct Peer {
    Fd socket, process;  // process: a pidfd, empty where the system gives none
    int pid = 0;
    std::atomic<PeerState> state{PeerState::kHere};
  };

  void read_all();
  bool read_next();
  void read(int rank);
  bool take_message(int rank);
  void gone(int rank, PeerState state);

  const int rank_;
  const int creator_;        // process id
  std::vector<Peer> peers_;  // [world]
  Fd stop_;                  // eventfd
  std::atomic<int> blamed_{-1}, said_to_be_gone_{-1};

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<std::tuple<int, MemoryKey>, Fd> received_;
  std::map<int, std::function<void(int, int)>> watchers_;
  int next_token_ = 0;

  std::thread reader_;
};

}  // namespace stretto
