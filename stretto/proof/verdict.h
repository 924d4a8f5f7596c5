// What the proof says of a program in one word, and what a proof that is not complete has not
// shown. Made by prove.cc; kept by proof_cache.h; docs/concepts/proof.md explains the words.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/errors.h"

namespace stretto {

enum class Verdict : std::uint8_t {
  kProved,              // all sizes up to the bounds, all tables, all sequences of launches
  kProvedAtFixedSizes,  // the extents at their bounds, as asked for, and nothing else
  kNotComplete,         // nothing wrong was found, and something was not shown
  kRejected,            // something is wrong, at sizes, tables and launches that the report names
};

// "proved", "proved at fixed sizes", "not complete", "rejected".
const char* name(Verdict verdict);
std::optional<Verdict> verdict_named(std::string_view word);

// What may not have been shown.
inline constexpr const char* kMissingSizes = "sizes";
inline constexpr const char* kMissingTables = "tables";
inline constexpr const char* kMissingEntries = "entries of tables";
inline constexpr const char* kMissingOrders = "orders of launches";
inline constexpr const char* kMissingLimit = "a limit of the proof";
inline constexpr std::array kAllMissing = {kMissingSizes, kMissingTables, kMissingEntries,
                                           kMissingOrders, kMissingLimit};

// Something that was not shown. None of the three is empty.
struct Missing {
  std::string what;        // one of kAllMissing
  std::string where;       // which of them, or a source line
  std::string expression;  // what in the program it comes of
};
// "sizes: m = 1 to 70, other than 16 of them".
std::string describe(const Missing& missing);

// A program that is not launched: nothing wrong was found in it, and something was not shown.
// what() names the program, what is missing, and what whoever launches it can do. Exit code 5.
class NotComplete : public Error {
 public:
  // `program` as in "hello on 2 ranks".
  NotComplete(const std::string& program, std::vector<Missing> missing);
  const std::vector<Missing>& missing() const { return missing_; }

 private:
  std::vector<Missing> missing_;
};

}  // namespace stretto
