// Sums over ranks: in fp32 (of f64 in f64) and in rank order, so that they are the same bits on
// every rank. In worlds that a node holds all parts are loaded before the first addition.
#pragma once

#include <functional>

#include "stretto/lang/program_builder.h"

namespace stretto {

// Of worlds up to this one value per rank fits into registers.
constexpr int kRanksTogether = 8;

using PartOfRank = std::function<Value(const Index& source)>;

// What part(r) gives, of `type`, of every rank, this one among them.
Value sum_over_ranks(ProgramBuilder& p, const ValueType& type, const PartOfRank& part);
// The same where this rank has its own part already: part(r) is called for others only. Not
// `together`: one part after the other, as large tiles fill the registers.
Value sum_with_own(ProgramBuilder& p, const Value& mine, const PartOfRank& part,
                   bool together = true);

}  // namespace stretto
