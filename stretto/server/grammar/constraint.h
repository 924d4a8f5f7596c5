// Grammars as requests ask for them: made once, on a text worker, kept for others that ask the
// same, and run beside a request's tokens. What the server has of this folder.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "stretto/engine/token_constraint.h"
#include "stretto/server/grammar/grammar.h"
#include "stretto/server/grammar/json_schema.h"

namespace stretto::grammar {

// A grammar that is ready to run.
class Grammar {
 public:
  Grammar(const Rules& rules, const Vocabulary& vocabulary, Budget& budget);
  // The automaton that all requests with this grammar use, until it is full.
  std::shared_ptr<Automaton> automaton() const;
  const Vocabulary& vocabulary() const { return vocabulary_; }
  std::size_t bytes() const { return network_->bytes(); }

 private:
  const Vocabulary& vocabulary_;
  std::shared_ptr<const Network> network_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Automaton> automaton_;
};

// One answer's way through a grammar. What was generated says all: after a preemption or with a
// automaton that is full it is gone through again.
class GrammarConstraint final : public TokenConstraint {
 public:
  // `ends` may come where the text may end.
  GrammarConstraint(std::shared_ptr<const Grammar> grammar, std::vector<int> ends);
  Allowed after(std::span<const int> generated) override;

 private:
  void begin();
  void take(int token);
  bool is_end(int token) const;

  std::shared_ptr<const Grammar> grammar_;
  std::vector<int> ends_;
  std::shared_ptr<Automaton> automaton_;
  int state_ = 0;
  std::vector<int> taken_;
  bool has_ended_ = false;
  std::shared_ptr<const Bits> allowed_;
  Bits with_ends_;
};

// Requests have more grammars than memory is meant for.
class GrammarsFull : public Error {
 public:
  using Error::Error;
};

// Grammars that were asked for lately, by what was asked.
class GrammarCache {
 public:
  struct Limits {
    std::size_t kept = 64, kept_bytes = std::size_t{128} << 20;
    std::size_t live_bytes = std::size_t{1} << 30;  // of those that requests have, too
  };
  GrammarCache() : GrammarCache(Limits()) {}
  explicit GrammarCache(const Limits& limits) : limits_(limits) {}

  // `make` makes the rules where the key is new. GrammarsFull.
  template <typename Make>
  std::shared_ptr<const Grammar> of(const std::string& key, const Vocabulary& vocabulary,
                                    Make make) {
    if (auto kept = known(key)) return kept;
    Budget budget;
    return add(key, std::make_shared<const Grammar>(make(budget), vocabulary, budget));
  }

  // Null where it is new, or no longer kept.
  std::shared_ptr<const Grammar> known(const std::string& key);

 private:
  std::shared_ptr<const Grammar> add(const std::string& key, std::shared_ptr<const Grammar> made);

  struct Kept {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
    std::size_t bytes() const { return key.size() + grammar->bytes(); }
  };
  Limits limits_;
  std::mutex mutex_;
  std::list<Kept> kept_;  // last used first
  std::size_t kept_bytes_ = 0;
  std::vector<std::weak_ptr<const Grammar>> live_;
};

}  // namespace stretto::grammar
