#include "stretto/proof/mutation/explained_survivors.h"

#include <fnmatch.h>

namespace stretto {

namespace {

constexpr const char* kOneArrival =
    "the counter has one notifier and the wait asks for 1, which the first of the two brings after "
    "the same accesses";
constexpr const char* kEveryRank =
    "the loop notifies every rank: only the order in which it does so changes";
constexpr const char* kEveryChannel = "the loop waits for every channel: only the order changes";
constexpr const char* kSwappedSources =
    "every channel is waited for, with the same count, before the launch ends: sources swap "
    "channels";
constexpr const char* kOwnRank =
    "the iteration is the rank itself, which its own launch order covers";
constexpr const char* kOwnPart =
    "a rank's notify to itself is waited for by nobody: its own part never leaves its registers";
constexpr const char* kOwnTilesFirst =
    "each worker starts with tiles of its own rank, which need no wait, and waits there for the "
    "rank that its next tiles need";
constexpr const char* kTwoShotDone =
    "'done' adds nothing: a launch ends after every owner's sums have come, so every input has "
    "been read, and 'ready' of the next launch guards the sums";
constexpr const char* kRingReady =
    "'ready' adds nothing: a message has been all around the ring before a rank ends its launch";

}  // namespace

const std::vector<Explanation>& explanations() {
  static const std::vector<Explanation> all = {
      {"lm_head P=*", "duplicate notify", "gather: notify 'done'", kOneArrival},
      {"gemm_ar P=*", "duplicate notify", "gemm@(|.consumer): notify 'arrived'", kOneArrival},
      {"@(all_gather|reduce_scatter|all_reduce_one_shot|all_reduce_two_shot|all_reduce_ring|all_to_"
       "all|broadcast|ag_gemm|ag_gemm_push|gemm_rs_copy|all_reduce_add_rms_norm) P=*",
       "duplicate notify", "on_start: notify 'ready'", kOneArrival},
      {"all_reduce_add_rms_norm P=*", "duplicate notify", "reduce_norm: notify 'done'",
       kOneArrival},
      {"gemm_rs_copy P=*", "duplicate notify", "scatter: notify 'arrived'", kOneArrival},
      {"embedding P=3", "duplicate notify", "sum: notify 'done'", kOneArrival},
      {"lm_head P=*", "notify too much", "gather: notify 'done'", kOneArrival},
      {"gemm_ar P=*", "notify too much", "gemm@(|.consumer): notify 'arrived'", kOneArrival},
      {"@(all_gather|reduce_scatter|all_reduce_one_shot|all_reduce_two_shot|all_reduce_ring|all_to_"
       "all|broadcast|ag_gemm|ag_gemm_push|gemm_rs_copy|all_reduce_add_rms_norm) P=*",
       "notify too much", "on_start: notify 'ready'", kOneArrival},
      {"all_reduce_add_rms_norm P=*", "notify too much", "reduce_norm: notify 'done'", kOneArrival},
      {"gemm_rs_copy P=*", "notify too much", "scatter: notify 'arrived'", kOneArrival},
      {"embedding P=3", "notify too much", "sum: notify 'done'", kOneArrival},
      {"gemm_ar P=*", "notify wrong rank", "gemm@(|.consumer): notify 'arrived'", kEveryRank},
      {"lm_head P=*", "notify wrong rank", "gemm@(|.consumer): notify 'computed'", kEveryRank},
      {"embedding P=*", "notify wrong rank", "lookup: notify 'looked_up'", kEveryRank},
      {"@(all_gather|reduce_scatter|all_reduce_one_shot|all_reduce_two_shot|all_to_all|broadcast|"
       "ag_gemm|ag_gemm_push|gemm_rs_copy|all_reduce_add_rms_norm) P=*",
       "notify wrong rank", "on_start: notify 'ready'", kEveryRank},
      {"@(reduce_scatter|all_reduce_one_shot|all_reduce_two_shot) P=*", "notify wrong rank",
       "reduce: notify 'done'", kEveryRank},
      {"all_reduce_two_shot P=*", "notify wrong rank", "reduce: notify 'reduced'", kEveryRank},
      {"all_reduce_add_rms_norm P=*", "notify wrong rank", "reduce_norm: notify 'done'",
       kEveryRank},
      {"embedding P=*", "notify wrong rank", "sum: notify 'done'", kEveryRank},
      {"@(all_gather|reduce_scatter|all_reduce_one_shot|all_reduce_two_shot|all_to_all|broadcast|"
       "ag_gemm|all_reduce_add_rms_norm|embedding|lm_head) P=*",
       "wait for wrong channel", "on_end: wait 'done'", kEveryChannel},
      {"gemm_ar_two_shot P=*", "wait for wrong channel", "on_end: wait 'gathered'", kEveryChannel},
      {"@(all_gather|reduce_scatter|all_reduce_one_shot|all_reduce_two_shot|all_to_all) P=*",
       "wait in wrong rotation", "on_end: wait 'done'", kEveryChannel},
      {"@(all_gather|all_reduce_two_shot|ag_gemm|lm_head) P=*", "notify wrong channel",
       "gather: notify 'done'", kSwappedSources},
      {"@(all_to_all|broadcast) P=*", "notify wrong channel", "pull: notify 'done'",
       kSwappedSources},
      {"@(reduce_scatter|all_reduce_one_shot) P=*", "notify wrong channel", "reduce: notify 'done'",
       kSwappedSources},
      {"all_reduce_two_shot P=2", "notify wrong channel", "reduce: notify 'done'", kSwappedSources},
      {"gemm_ar_two_shot P=*", "notify wrong channel", "reduce: notify 'gathered'",
       kSwappedSources},
      {"all_reduce_add_rms_norm P=*", "notify wrong channel", "reduce_norm: notify 'done'",
       kSwappedSources},
      {"embedding P=*", "notify wrong channel", "sum: notify 'done'", kSwappedSources},
      {"@(all_gather|reduce_scatter|all_reduce_one_shot|all_reduce_two_shot|all_to_all) P=*",
       "skip first iteration", "on_end: loop 'done'", kOwnRank},
      {"broadcast P=*", "skip last iteration", "on_end: loop 'done'", kOwnRank},
      {"@(all_gather|all_to_all|ag_gemm) P=2?( gpu)", "notify wrong channel",
       "on_start: notify 'ready'", kOwnTilesFirst},
      {"ag_gemm_push P=*", "notify wrong channel", "on_start: notify 'ready'", kOwnTilesFirst},
      {"@(all_gather|ag_gemm) P=*", "wait for wrong channel", "gather: wait 'ready'",
       kOwnTilesFirst},
      {"all_to_all P=*", "wait for wrong channel", "pull: wait 'ready'", kOwnTilesFirst},
      {"ag_gemm_push P=2", "wait for wrong channel", "push: wait 'ready'", kOwnTilesFirst},
      {"all_reduce_two_shot P=*", "drop on_end", "on_end", kTwoShotDone},
      {"all_reduce_two_shot P=*", "drop wait", "on_end: wait 'done'", kTwoShotDone},
      {"all_reduce_two_shot P=*", "duplicate notify", "gather: notify 'done'", kTwoShotDone},
      {"all_reduce_two_shot P=*", "duplicate notify", "reduce: notify 'done'", kTwoShotDone},
      {"all_reduce_two_shot P=*", "lower threshold", "on_end: wait 'done'", kTwoShotDone},
      {"all_reduce_two_shot P=*", "notify before the access", "gather: notify 'done'",
       kTwoShotDone},
      {"all_reduce_two_shot P=*", "notify before the access", "reduce: notify 'done'",
       kTwoShotDone},
      {"all_reduce_two_shot P=*", "notify too much", "gather: notify 'done'", kTwoShotDone},
      {"all_reduce_two_shot P=*", "notify too much", "reduce: notify 'done'", kTwoShotDone},
      {"all_reduce_two_shot P=*", "notify wrong rank", "gather: notify 'done'", kTwoShotDone},
      {"all_reduce_two_shot P=*", "skip last iteration", "on_end: loop 'done'", kTwoShotDone},
      {"all_reduce_ring P=*", "drop wait", "ring: wait 'ready'", kRingReady},
      {"all_reduce_ring P=*", "wait after the access", "ring: wait 'ready'", kRingReady},
      {"gemm_ar P=*", "access on wrong rank", "gemm@(|.consumer): store 'slots'",
       "the loop stores at every rank before it notifies any: only the order changes"},
      {"broadcast P=*", "condition always holds", "on_start: when 'ready'",
       "the others' notifies are waited for by nobody"},
      {"gemm_ar_two_shot P=*", "fewer slots", "buffer 'slots'",
       "a launch ends after every owner's sums have come, so one slot is enough"},
      {"gemm_ar_two_shot P=2", "notify wrong rank", "reduce: notify 'gathered'",
       "the other rank hears after both stores; the own one needs no notify"},
      {"all_reduce_packet P=*", "packet to wrong rank", "push: store_packet 'inbox'",
       "the loop sends to every rank: only the order changes"},
      {"all_reduce_packet P=*", "packet to wrong slot", "push: store_packet 'inbox'",
       "every slot still has one writer and is read once: the order of the sum changes, a matter "
       "of values"},
      {"all_reduce_two_shot P=*", "swap signals of notifies", "reduce: notify 'reduced'",
       "the two loops are alike: same ranks, same channels, same place"},
      {"ag_gemm P=*", "wait for wrong channel", "gemm: wait 'arrived'",
       "queues copy a rank's rows in the order of their channels: the later channel implies the "
       "one left out"},
      {"@(gemm_ar_two_shot|gemm_rs) P=* gpu", "@(duplicate notify|notify too much)",
       "gemm.consumer: notify 'arrived'", kOneArrival},
      {"@(gemm_rs_copy|lm_head) P=* gpu", "@(duplicate notify|notify too much)",
       "gemm.consumer: notify 'computed'", kOneArrival},
      {"gemm_ar_two_shot P=* gpu", "@(duplicate notify|notify too much)",
       "gemm.consumer: notify 'gathered'", kOneArrival},
      {"gemm_ar_two_shot P=* gpu", "notify wrong channel", "gemm.consumer: notify 'gathered'",
       kSwappedSources},
      {"gemm_ar_two_shot P=2 gpu", "notify wrong rank", "gemm.consumer: notify 'gathered'",
       "the other rank hears after both stores; the own one needs no notify"},
      {"gemm_ar_two_shot P=*", "condition always holds", "on_end: when 'gathered'",
       "the condition holds for every owner"},
      {"@(gemm_rs|gemm_ar_two_shot) P=* gpu", "condition always holds",
       "gemm.consumer: when 'arrived' #3", kOwnPart},
      {"gemm_rs_copy P=* gpu", "condition always holds", "gemm.consumer: when 'computed'",
       kOwnPart},
      {"gemm_rs_copy P=* gpu", "skip first iteration", "on_start: loop 'ready'", kOwnPart},
      {"@(* gpu|piped)", "pipe of one slot", "*", "the pipe works with one slot, only slower"},
      {"piped", "condition always holds", "gemm.math: when", "the condition holds for every tile"},
      {"piped", "drop fence", "gemm.math: fence",
       "the condition holds for every tile, so the fence is never reached"},
  };
  return all;
}

bool explains(const Explanation& explanation, const Survivor& survivor) {
  auto matches = [](const char* pattern, const std::string& text) {
    return fnmatch(pattern, text.c_str(), FNM_EXTMATCH) == 0;
  };
  return matches(explanation.label, survivor.label) && matches(explanation.kind, survivor.kind) &&
         matches(explanation.site, survivor.site);
}

const Explanation* find_explanation(const Survivor& survivor) {
  for (const Explanation& e : explanations()) {
    if (explains(e, survivor)) return &e;
  }
  return nullptr;
}

}  // namespace stretto
