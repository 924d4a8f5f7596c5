// In which order launches of different sizes are looked at.
//
// Launches of sizes that synchronise alike (launch_kinds.h) may follow each other in any way: the
// order is the same, and every access of one is compared with every access of the others. So what
// is left to choose is sequences of kinds. Only a sequence's first launch is checked, against the
// later ones: launches before it take no order away (happens_before.h), so a sequence stands for
// itself and wherever it goes on from there.
//
// One kind: the sequence of that kind alone. All sequences of sizes are covered.
//
// Several kinds, and every signal that is waited for gets its notifies from one rank. What a wait
// needs is then found in its own launch: that rank does not get to the next one without having sent
// all of this one's. So launches that come after a pair of accesses tell nothing of it, and one
// that is put between them takes nothing away: every notify that was necessary still is, since what
// a launch adds is what the thresholds behind it are higher by. All sequences of `slots` + 1
// launches, the last of which is the next to share a slot with the first, therefore cover all
// others. None of them is laid out where what each kind promises by itself suffices
// (launch_promises.h).
//
// Several kinds and a signal from several ranks: one of them may stand in for another by running
// ahead through launches of other sizes, so what follows matters. It does not matter for ever where
// no rank ends a launch of any kind that the waiting rank has not begun, looked at in a launch by
// itself, all before it being over: the first rank to end launch e has got nothing from launches
// behind e, and what the launches before e add is what the thresholds of e are higher by. So before
// a wait of launch e others are in launch e + 1 at most, and all sequences of one launch more than
// above cover all others.
//
// Otherwise a rank may run ahead by any number of launches, and it is sequences of two kinds: all
// of the D + 2 first launches, D being the most slots of a buffer (beyond three slots those with
// one or two changes), whereafter the last one goes on, and the two kinds in turn. That is not all
// there is, and the proof is not complete.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "stretto/proof/launch_kinds.h"

namespace stretto {

struct LaunchOrder {
  std::vector<int> kinds;  // of the launches
  int reach = 1;           // the first is compared with up to so many later ones
  int named = 1;           // launches that a report names
};

// Whether each signal that is waited for gets its notifies from one rank.
bool notified_by_one(const std::vector<LaunchKind>& kinds);

// The most slots of a buffer that other ranks touch, at least 1.
int most_slots(const Program& program);

// Launches of one kind, as many as it takes to see what runs ahead.
LaunchOrder steady_order(const Program& program, int kind);
// No more of them than are compared with the first; where several agents notify a signal one more,
// which shows that none of them runs ahead of the last. What is derived there is so whatever
// follows (happens_before.h), but of more launches more may be derived.
LaunchOrder short_order(const Program& program, const LaunchKind& of, int kind);

// Why not every sequence of launches is looked at: a source line, and what in the program it comes
// of.
struct OrdersLeftOut {
  std::string where, expression;
};

struct MixedOrders {
  std::vector<LaunchOrder> orders;
  std::optional<OrdersLeftOut> left_out;  // none: these stand for every sequence
};
// Where those that stand for every sequence are more than affordable, a quarter of that.
// `in_doubt`: the buffer whose slots promises do not show to be free, -1 where none was asked for.
MixedOrders mixed_orders(const Program& program, const std::vector<LaunchKind>& kinds,
                         std::size_t affordable, int in_doubt);

// "m = 1 in launch 0, m = 0 in launches 1 to 2": the sizes of an order's launches, where the first
// has the `first` size of its kind and the one `apart` launches later the `later` one.
struct CasesInTurn;
std::string describe_order(const std::vector<LaunchKind>& kinds, const LaunchOrder& order,
                           const CasesInTurn& sizes);

}  // namespace stretto
