// What something long does now: told by who does it, asked by who waits for it. From any thread.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace stretto {

class Progress {
 public:
  // What begins: "proving gemm, operator 3 of 11".
  void begin(std::string what);
  // The larger thing that what begins from now on is part of: "step 2 of 5, 64 rows"; "" for none.
  void within(std::string whole);
  // "proving gemm, operator 3 of 11, step 2 of 5, 64 rows, for 4 s"; "" before anything has begun.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::string what_, whole_;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace stretto
