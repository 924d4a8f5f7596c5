// Which rows of which requests the next forward step has: nothing but decisions over a state, with
// no clock, no thread and no device, so that the same calls give the same decisions.
//
// A step has a budget of rows. What runs goes first: one row for each request that decodes, then
// pieces of prompts in what is left (Agrawal et al., SARATHI, 2023). Where blocks of the cache run
// out, the last of the running ones gives its blocks back and is computed again later, its tokens
// kept. Then waiting ones come in, highest priority first, of equals the earliest; the first of the
// running ones has rows in every step. Who has waited for long comes in before all others.
//
// A step may be decided while the one before it is under way, whose tokens nobody knows yet: each
// request whose next token comes of that one has a row for the token after it, unless that would be
// one too many (max_tokens). Steps are made in the order in which they are decided, so a block that
// is free may be in the next one while the one under way reads it. Only blocks of requests that
// have ended wait for the steps that have rows of them; where these are enough, who lacks a block
// waits for them and takes none from others.
//
// Before: kv/. After: batch_engine.h, which makes the steps.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stretto/kv/block_pool.h"
#include "stretto/kv/prefix_cache.h"

namespace stretto {

struct SchedulerLimits {
  int max_running = 64;  // requests with rows in a step; at most max_rows
  int max_rows = 256;    // of a step
  int max_prompts = 0;   // requests with more than one row in a step; 0: any number
  int num_blocks = 1;    // of the cache
  int block_tokens = 64;
  bool prefix_caching = true;
  // Who has waited for so many steps has the highest priority from then on; 0: whoever waits keeps
  // its own, and lower ones may wait as long as higher ones come.
  int most_waits = 0;
};

using RequestId = std::uint64_t;

struct ScheduledRequest {
  std::vector<int> tokens;  // the prompt; what is chosen is added to it
  std::int64_t max_tokens = 1;
  int priority = 0;        // higher ones come in first
  std::string salt;        // only requests with the same one share blocks
  bool every_row = false;  // it wants what comes of every row of its prompt, cached or not
};

// The rows of one request in a step: of its tokens [first, first + count).
struct Piece {
  RequestId id = 0;
  std::int64_t first = 0, count = 0;
  bool last = false;  // its last row chooses the request's next token
  // Its token is not known: it is the one that the step under way chooses. It has one row.
  bool follows = false;
};

class Scheduler {
 public:
  // Limits with a block of the cache, and a row of a step for each request that runs.
  explicit Scheduler(const SchedulerLimits& limits);

  // The most tokens, those that it is given included, of a request that the cache can hold.
  std::int64_t most_tokens() const;

  // UserError where it has no tokens, or more than most_tokens() with those it may get: the token
  // chosen last needs no room.
  RequestId add(ScheduledRequest request);

  // The next step; empty where nothing is to do, or not before the step under way is made. Each one
  // that is not empty is followed by a complete(), before which one more may be decided.
  std::vector<Piece> decide();
  // The earliest step under way was made. `chosen`: the token of each piece that is `last`; of
  // those that were cancelled or begun again meanwhile it does not count. Requests that have their
  // tokens end by themselves.
  void complete(const std::map<RequestId, int>& chosen);
  // What the steps under way compute of a request does not count: its rows are given again. Nothing
  // where it has ended.
  void begin_again(RequestId id);
  // Ends a request in any state; its blocks are free at once, or after the steps under way that
  // have rows of it. Nothing where it has ended.
  void cancel(RequestId id);

  // Of requests that have not ended.
  bool has(RequestId id) const {
    auto found = requests_.find(id);
    return found != requests_.end() && !found->second.ended;
  }
  std::span<const int> tokens(RequestId id) const { return at(id).request.tokens; }  // known ones
  std::span<const int> blocks(RequestId id) const { return at(id).blocks; }  // in order of tokens

  // What became of a request that has not ended.
  struct Course {
    std::int64_t cached = 0;  // tokens that were found in the cache when it first came in
    std::int64_t preemptions = 0;
  };
  Course course(RequestId id) const { return at(id).course; }

  std::size_t num_running() const { return running_.size(); }
  std::optional<RequestId> first_running() const {
    return running_.empty() ? std::nullopt : std::optional(running_.begin()->second);
  }
  std::size_t num_waiting() const { return waiting_.size(); }
  bool is_idle() const { return requests_.empty(); }
  std::size_t num_under_way() const { return steps_.size(); }

  struct Counters {
    std::int64_t preemptions = 0;
    std::int64_t prefix_queries = 0, prefix_hits = 0;  // tokens asked for and found in the cache
  };
  const Counters& counters() const { return counters_; }
  int num_blocks() const { return pool_.size(); }
  // Of blocks whose content nobody needs.
  int num_available_blocks() const { return pool_.num_available(); }

  // InternalError where the state contradicts itself; for tests, and where nothing runs.
  void verify() const;

 private:
  struct Entry {
    ScheduledRequest request;
    std::int64_t computed = 0;  // tokens whose keys and values are in the blocks
    std::int64_t given = 0;     // the same with what steps under way compute
    std::size_t published = 0;  // blocks that the prefix cache knows
    std::vector<int> blocks;
    std::int64_t chosen = 0;
    std::int64_t pending = 0;  // tokens that steps under way choose, or the one that is decided
    bool has_run = false;
    Course course;
    bool ended = false;            // while steps are under way that have rows of it
    std::int64_t waits_since = 0;  // the number of steps that had been decided
    bool has_waited = false;       // as long as it should at most

    // It has or gets all of its tokens.
    bool is_full() const { return chosen + pending == request.max_tokens; }
    std::int64_t num_tokens() const { return static_cast<std::int64_t>(request.tokens.size()); }
    std::int64_t need() const { return is_full() ? 0 : num_tokens() + pending - given; }
  };
  // Rows of one request in a step that is decided.
  struct Rows {
    Piece piece;
    std::int64_t preemptions = 0;  // of the request so far: with more, its blocks are gone
    bool counts = true;            // what comes of them
  };
  using Step = std::map<RequestId, Rows>;
  // The order in which requests come in, and go on.
  using Turn = std::pair<std::int64_t, RequestId>;  // -priority, id

  Entry& at(RequestId id);
  const Entry& at(RequestId id) const;
  static Turn turn_of(RequestId id, const Entry& e) {
    constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min();
    return {e.has_waited ? kFirst : -std::int64_t{e.request.priority}, id};
  }
  void let_in_who_has_waited();
  std::int64_t blocks_for(std::int64_t tokens) const;

  // Rows for a running request; false where it was itself the last that runs, and no longer does.
  bool give_rows(RequestId id, std::int64_t count);
  void place(RequestId id, Entry& e, std::int64_t count);
  void preempt(RequestId id);
  bool admit(RequestId id);
  std::int64_t missing_blocks(const Entry& e, std::int64_t tokens) const;
  bool grow(Entry& e, std::int64_t tokens);
  // Blocks of requests that have ended, or end with the step under way.
  std::int64_t blocks_to_come() const;
  // Whether such a step has rows of it that are computed into its blocks.
  bool is_under_way(RequestId id, const Entry& e) const;
  void give_back(Entry& e);
  void publish(Entry& e);
  void end(RequestId id);

  SchedulerLimits limits_;
  BlockPool pool_;
  PrefixCache cache_;
  std::map<RequestId, Entry> requests_;
  std::set<Turn> waiting_, running_;
  std::deque<Step> steps_;         // under way, the earliest first
  Step step_;                      // the one that is being decided
  std::int64_t budget_ = 0;        // rows that it has left
  std::int64_t prompts_left_ = 0;  // requests that may have more than one of them
  bool waits_for_blocks_ = false;  // somebody does, so nobody else takes one
  std::int64_t num_decided_ = 0;   // steps
  RequestId last_id_ = 0;
  Counters counters_;
};

}  // namespace stretto
