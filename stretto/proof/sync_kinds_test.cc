// Launches taken for alike share one happens-before. If these fail, a size whose waits are missing
// is judged by the waits of another.
#include "stretto/proof/sync_kinds.h"

#include <gtest/gtest.h>

#include "stretto/proof/expand.h"
#include "stretto/proof/test_programs.h"

namespace stretto::sync_kinds_test {
namespace {

using test_programs::Edit;
using test_programs::edit;
using test_programs::gather_then_store;
using test_programs::is_notify;
using test_programs::is_wait;
using test_programs::local_copy;
using test_programs::Matches;
using test_programs::packet_exchange;

std::vector<int> kinds_of(const std::vector<InstanceGraph>& graphs) {
  std::vector<const InstanceGraph*> pointers;
  for (const InstanceGraph& graph : graphs) pointers.push_back(&graph);
  return synchronisation_kinds(pointers);
}

TEST(SyncKinds, SizesThatChangeAccessesOnlyAreAlike) {
  Program program = local_copy(2);
  EXPECT_EQ(kinds_of({expand(program, {37}), expand(program, {0}), expand(program, {8})}),
            (std::vector<int>{0, 0, 0}));
}

TEST(SyncKinds, SizesThatChangeTheNumberOfWaitsAreNot) {
  Program program = gather_then_store(2);
  EXPECT_EQ(kinds_of({expand(program, {29}), expand(program, {0}), expand(program, {29}),
                      expand(program, {28}), expand(program, {0})}),
            (std::vector<int>{0, 1, 0, 0, 1}));
}

TEST(SyncKinds, EveryEditOfSynchronisationShows) {
  Program program = gather_then_store(3);
  for (const char* signal : {"ready", "here", "done"}) {
    for (const Matches& site : {is_wait(program, signal), is_notify(program, signal)}) {
      for (Edit how : {Edit::kDrop, Edit::kDuplicate, Edit::kThresholdPlus, Edit::kOtherChannel}) {
        Program other = gather_then_store(3);
        ASSERT_TRUE(edit(other, site, how));
        EXPECT_EQ(kinds_of({expand(program, {29}), expand(other, {29})}), (std::vector<int>{0, 1}))
            << signal << " edit " << static_cast<int>(how);
      }
    }
  }
}

TEST(SyncKinds, PacketsCountByWhereTheyComeFrom) {
  Program program = packet_exchange(2, 2), other = packet_exchange(2, 2);
  other.roles[0].num_tiles = 1;
  EXPECT_EQ(kinds_of({expand(program, {}), expand(program, {}), expand(other, {})}),
            (std::vector<int>{0, 0, 1}));
}

}  // namespace
}  // namespace stretto::sync_kinds_test
