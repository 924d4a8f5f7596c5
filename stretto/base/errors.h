// The ways in which stretto fails, each its own type, so that a caller can tell a bad argument
// from our bug and from a machine that stopped (NotComplete is in proof/verdict.h). No library
// calls exit() or prints an error: they throw one of these, and the command line turns the type
// into an exit code (docs/guide/errors.md).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace stretto {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A bad program, argument, file or request. The message says which one and where. Exit code 2.
class UserError : public Error {
 public:
  using Error::Error;
};

// The proof found a race, a deadlock or an uncovered read; what() is the report. Exit code 1.
class Rejected : public Error {
 public:
  using Error::Error;
};

// A bug of ours. Exit code 70.
class InternalError : public Error {
 public:
  using Error::Error;
};

// The device or its driver refused a call. Exit code 4.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// What the first waiter that aborted saw. Written once per fault; the other ranks report the same
// record.
struct FaultRecord {
  std::string program;
  std::string role;        // the role whose wait timed out
  int rank = -1;           // the rank that waited
  std::int64_t tile = -1;  // linear tile index within the role, -1 outside a tile
  std::string signal;
  std::int64_t channel = -1;
  std::int64_t expected = 0;  // the wait needed at least this value ...
  std::int64_t seen = 0;      // ... and last saw this one
  int waited_for = -1;        // the rank expected to notify, -1 where the program does not say
  std::string reason;         // "deadline", "rank 2 died: <message>", ...

  std::string to_string() const;
};

// A rank stalled or died. Exit code 3. World::recover() makes the world usable again.
class Fault : public Error {
 public:
  explicit Fault(FaultRecord record);
  const FaultRecord& record() const { return record_; }

 private:
  FaultRecord record_;
};

// STRETTO_CHECK(cond, "text"): our own invariants; throws InternalError with file and line.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

}  // namespace stretto

#define STRETTO_CHECK(cond, message)                                          \
  do {                                                                        \
    if (!(cond)) ::stretto::check_failed(__FILE__, __LINE__, #cond, message); \
  } while (false)
