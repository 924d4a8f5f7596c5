// Which tokens an answer may go on with: what a grammar is to the engine. server/grammar has one;
// sampling.h leaves out what it does not allow.
#pragma once

#include <cstdint>
#include <span>

#include "stretto/base/errors.h"

namespace stretto {

// A constraint that no token fits, or that costs too much: the request's fault, not the model's.
class ConstraintError : public UserError {
 public:
  using UserError::UserError;
};

class TokenConstraint {
 public:
  struct Allowed {
    std::span<const std::uint32_t>
        bits;                  // token t is bit t % 32 of word t / 32; until the next call
    bool is_complete = false;  // nothing may follow, not even an end: the answer is there
  };

  virtual ~TokenConstraint() = default;
  // After `generated`, the answer's tokens so far: usually one more than at the last call, but any
  // of the same answer will do. ConstraintError.
  virtual Allowed after(std::span<const int> generated) = 0;
};

}  // namespace stretto
