#include "stretto/proof/mutation/explained_survivors.h"

#include <fnmatch.h>

#include <algorithm>
#include <regex>

namespace stretto {

namespace {

constexpr const char* kOneArrival =
    "the counter has one notifier and the wait asks for 1, which the first of the two brings after "
    "the same accesses";
constexpr const char* kOwnKeys =
    "the own keys are looked at in place of what arrived: a matter of values";
constexpr const char* kEveryRank =
    "the loop notifies every rank: only the order in which it does so changes";
constexpr const char* kEveryChannel = "the loop waits for every channel: only the order changes";
constexpr const char* kSwappedSources =
    "every channel is waited for, with the same count, before the launch ends: sources swap "
    "channels";
constexpr const char* kOwnRank =
    "the iteration is the rank itself, which its own launch order covers";
constexpr const char* kEveryTile = "the condition holds for every tile";
constexpr const char* kOwnPart =
    "a rank's notify to itself is waited for by nobody: its own part never leaves its registers";
constexpr const char* kReadByThreads =
    "threads have read this slot before; what is awaited reads those of the factors";
constexpr const char* kPutAfterwards = "what it gets was put after the same waits of the producer";
constexpr const char* kTablesFirst =
    "the worker has made or waited for tables before, for which every rank has told what its "
    "tokens are";
constexpr const char* kReadsTables =
    "what moves ahead of it is another wait, or reads tables, which have a wait of their own";
constexpr const char* kRowsAnyway =
    "a tile without rows, or that reads fewer ranks' rows, waits for what comes anyway";
constexpr const char* kTogether =
    "a worker notifies of all its tiles at once: where each has two or more, one more or less is "
    "not what is missing";
constexpr const char* kOneTile = "a worker has one tile, its first and its last";
constexpr const char* kRingReady =
    "'ready' adds nothing: a message has been all around the ring before a rank ends its launch";
constexpr const char* kNoSuchRows =
    "what a turn after the last tile sends are rows that nobody has";
constexpr const char* kSumsTell =
    "sums of a tile come after its parts were read, and parts of a turn after those before";
constexpr const char* kOnlySeenIsSent =
    "with a window only chunks that some tile of the receiver waits for are sent "
    "(last_wait_test.cc)";
constexpr const char* kToldOfRead =
    "workers have several tiles here, and the notify of one tile says that the one before was read";
constexpr const char* kOfSums =
    "what moves past it reads parts or writes sums, of which another signal tells";

constexpr const char* kAllTold =
    "every channel is waited for, with the same count, before anything is read: sources swap "
    "channels";
constexpr const char* kReadsAnyRank =
    "rows of any rank may be read there, whose sizes say which: a matter of values";
constexpr const char* kStoresEverywhere =
    "the loop stores at every rank before any is notified: only the order changes";

// Ranks, and bounds of the run-time sizes, none where a program has none.
const ExplainedAt k1AtNone{{1}, {""}};
const ExplainedAt k123AtNoneAnd6{{1, 2, 3}, {"", "m = 6"}};
const ExplainedAt k2AtNone{{2}, {""}};
const ExplainedAt k2At14{{2}, {"m = 14"}};
const ExplainedAt k2At16And24{{2}, {"m = 16", "m = 24"}};
const ExplainedAt k2At37{{2}, {"m = 37"}};
const ExplainedAt k2At6{{2}, {"m = 6"}};
const ExplainedAt k2At9{{2}, {"m = 9"}};
const ExplainedAt k23AtNoneAnd1And6And7{{2, 3}, {"", "m = 1", "m = 6", "m = 7"}};
const ExplainedAt k23AtNoneAnd3And16And24And37{{2, 3}, {"", "m = 3", "m = 16", "m = 24", "m = 37"}};
const ExplainedAt k23AtNoneAnd3And9And37{{2, 3}, {"", "m = 3", "m = 9", "m = 37"}};
const ExplainedAt k23AtNoneAnd37{{2, 3}, {"", "m = 37"}};
const ExplainedAt k23At1And6{{2, 3}, {"m = 1", "m = 6"}};
const ExplainedAt k23At1And6And7{{2, 3}, {"m = 1", "m = 6", "m = 7"}};
const ExplainedAt k23At1With33{{2, 3}, {"m = 1, tokens = 33"}};
const ExplainedAt k23At10{{2, 3}, {"m = 10"}};
const ExplainedAt k23At14{{2, 3}, {"m = 14"}};
const ExplainedAt k23At16{{2, 3}, {"m = 16"}};
const ExplainedAt k23At16And24{{2, 3}, {"m = 16", "m = 24"}};
const ExplainedAt k23At24{{2, 3}, {"m = 24"}};
const ExplainedAt k23At3{{2, 3}, {"m = 3"}};
const ExplainedAt k23At37{{2, 3}, {"m = 37"}};
const ExplainedAt k23At6{{2, 3}, {"m = 6"}};
const ExplainedAt k23At6And9{{2, 3}, {"m = 6", "m = 9"}};
const ExplainedAt k23At9{{2, 3}, {"m = 9"}};
const ExplainedAt k23At5And7{{2, 3}, {"m = 5, room = 7"}};
const ExplainedAt k3At5And7{{3}, {"m = 5, room = 7"}};
const ExplainedAt k234At10And14And25{{2, 3, 4}, {"m = 10", "m = 14", "m = 25"}};
const ExplainedAt k234At14And25{{2, 3, 4}, {"m = 14", "m = 25"}};
const ExplainedAt k3At14{{3}, {"m = 14"}};
const ExplainedAt k3At16{{3}, {"m = 16"}};
const ExplainedAt k3At24{{3}, {"m = 24"}};
const ExplainedAt k3At6{{3}, {"m = 6"}};
const ExplainedAt k3At9{{3}, {"m = 9"}};
const ExplainedAt k34At14And25{{3, 4}, {"m = 14", "m = 25"}};
const ExplainedAt k4At14And25{{4}, {"m = 14", "m = 25"}};
const ExplainedAt k4At25{{4}, {"m = 25"}};

}  // namespace

const std::vector<Explanation>& explanations() {
  static const std::vector<Explanation> all = {
      {"all_@(to_all|gather)_v P*", k23At5And7, "access on wrong rank",
       "exchange: @(copy 'in'|load_rows 'in'|load_rows 'in' #2)", kReadsAnyRank},
      {"all_@(to_all|gather)_v P*", k3At5And7, "access on wrong rank",
       "exchange: load_rows 'in' #3", kReadsAnyRank},
      {"all_@(to_all|gather)_v P*", k23At5And7, "access on wrong rank",
       "exchange: store '@(rows_of_rank|first_row_of_rank)'", kStoresEverywhere},
      {"all_@(to_all|gather)_v P*", k23At5And7, "@(duplicate notify|notify too much)",
       "exchange: notify 'told'", kOneArrival},
      {"all_@(to_all|gather)_v P*", k23At5And7, "notify wrong channel", "exchange: notify 'told'",
       kAllTold},
      {"all_@(to_all|gather)_v P*", k23At5And7, "notify wrong channel", "exchange: notify 'done'",
       kSwappedSources},
      {"all_@(to_all|gather)_v P*", k23At5And7, "notify wrong rank",
       "exchange: notify '@(told|done)'", kEveryRank},
      {"all_@(to_all|gather)_v P*", k23At5And7, "@(wait for wrong channel|wait in wrong rotation)",
       "@(exchange: wait 'told'|on_end: wait 'done')", kEveryChannel},
      {"all_@(to_all|gather)_v P*", k23At5And7, "skip first iteration", "on_end: loop 'done'",
       kOwnRank},
      {"ring_all_reduce P*", k23At37, "condition always holds", "reduce: when 'freed'",
       kNoSuchRows},
      {"ring_all_reduce P*", k23At37, "wait for wrong signal", "reduce: wait 'freed'", kSumsTell},
      {"ring_all_reduce P*", k23At37, "duplicate notify", "reduce: notify 'arrived'", kSumsTell},
      {"ring_all_reduce P*", k23At37, "notify too much", "reduce: notify 'arrived'", kSumsTell},
      {"ring_all_reduce P*", k23At37, "wait after the access", "reduce: wait 'summed'", kOfSums},
      {"ring_all_reduce P*", k23At37, "swap signals of notifies", "reduce: notify 'freed'",
       kOfSums},
      {"ring_all_reduce P*", k23At37, "notify before the access", "reduce: notify 'freed'",
       kOfSums},
      {"@(gemm_ar|gemm_ar_fp8*|gemm_ar_shared) P*", k23At24, "duplicate notify",
       "gemm@(|.consumer): notify 'arrived'", kOneArrival},
      {"@(all_gather|reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*|all_reduce_two_shot|all_"
       "reduce_two_shot_max|all_reduce_ring|all_to_all|broadcast|ag_gemm|ag_gemm_fp8*|ag_gemm_"
       "gathered|ag_gemm_push|gemm_rs_copy|all_reduce_add_rms_norm) P*",
       k23AtNoneAnd3And16And24And37, "duplicate notify", "on_start: notify 'ready'", kOneArrival},
      {"all_reduce_add_rms_norm P*", k23At3, "duplicate notify", "reduce_norm: notify 'done'",
       kOneArrival},
      {"gemm_rs_copy P*", k23At16And24, "duplicate notify", "scatter: notify 'arrived'",
       kOneArrival},
      {"@(embedding|moe_combine) P", k3At9, "duplicate notify", "sum: notify 'done'", kOneArrival},
      {"@(gemm_ar|gemm_ar_fp8*|gemm_ar_shared) P*", k23At24, "notify too much",
       "gemm@(|.consumer): notify 'arrived'", kOneArrival},
      {"@(all_gather|reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*|all_reduce_two_shot|all_"
       "reduce_two_shot_max|all_reduce_ring|all_to_all|broadcast|ag_gemm|ag_gemm_fp8*|ag_gemm_"
       "gathered|ag_gemm_push|gemm_rs_copy|all_reduce_add_rms_norm) P*",
       k23AtNoneAnd3And16And24And37, "notify too much", "on_start: notify 'ready'", kOneArrival},
      {"all_reduce_add_rms_norm P*", k23At3, "notify too much", "reduce_norm: notify 'done'",
       kOneArrival},
      {"gemm_rs_copy P*", k23At16And24, "notify too much", "scatter: notify 'arrived'",
       kOneArrival},
      {"@(embedding|moe_combine) P", k3At9, "notify too much", "sum: notify 'done'", kOneArrival},
      {"@(gemm_ar|gemm_ar_fp8*) P*", k23At24, "notify wrong rank",
       "gemm@(|.consumer): notify 'arrived'", kEveryRank},
      {"ag_gemm_fp8_block P gpu", k23At16, "release before await",
       "gemm.consumer: pipe_release 'scale_b' #15", kReadByThreads},
      {"embedding P*", k23At9, "notify wrong rank", "lookup: notify 'looked_up'", kEveryRank},
      {"@(grouped_gemm_rs|moe_layer) P*", k23At6, "notify wrong rank", "on_start: notify 'free'",
       kEveryRank},
      {"@(moe_route|moe_route_limited|ep_place) P*", k23AtNoneAnd1And6And7,
       "condition always holds", "@(place|route): when 'placed'@(| #2)",
       "turns that count or place also look up rows below the first, of which there are none"},
      {"@(moe_route|moe_route_limited) P*", k23At1And6And7, "condition always holds",
       "route: when 'scored'",
       "turns that count also choose, of tokens behind the last: there are none"},
      {"@(ep_send*|ep_return) P*", k23At9, "@(duplicate notify|notify too much)",
       "on_start: notify 'ready'", kOneArrival},
      {"@(ep_send*|ep_return) P*", k23At9, "notify wrong rank", "on_start: notify 'ready'",
       kEveryRank},
      {"ep_send* P*", k23At9, "notify wrong channel", "@(on_start|send): notify '@(ready|sent)'",
       kSwappedSources},
      {"ep_send* P*", k23At9, "@(wait for wrong channel|wait in wrong rotation)",
       "send: wait 'ready'", kEveryChannel},
      {"ep_send* P*", k23At9, "skip first iteration", "send: loop 'ready'", kOwnRank},
      {"ep_send* P*", k23At6And9, "access on wrong rank", "send: store '@(recv|slots_of_|is_here)*",
       "the loop stores at every rank, and each hears after all stores: a matter of values"},
      {"ep_send* P*", k23At6And9, "notify wrong rank", "send: notify 'sent'", kEveryRank},
      {"ep_send* P*", k23At9, "wait for wrong channel", "on_end: wait 'sent'", kEveryChannel},
      {"ep_send* P in turn", k23At6, "@(duplicate notify|notify too much)", "send: notify 'sent'",
       kOneArrival},
      {"ep_return P*", k23At6And9, "@(duplicate notify|notify too much)",
       "combine: notify 'returned'", kOneArrival},
      {"ep_return P", k2At9, "access on wrong rank", "combine: store 'parts'",
       "whoever stores there reads what it had before instead: a matter of values"},
      {"moe_combine P*", k23At9, "notify wrong rank", "combine: notify 'combined'", kEveryRank},
      {"@(all_gather|reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*|all_reduce_two_shot|all_"
       "reduce_two_shot_max|all_to_all|broadcast|ag_gemm|ag_gemm_fp8*|ag_gemm_push|gemm_rs_copy|"
       "all_reduce_add_rms_norm) P*",
       k23AtNoneAnd3And16And24And37, "notify wrong rank", "on_start: notify 'ready'", kEveryRank},
      {"@(reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*|all_reduce_two_shot|all_reduce_two_"
       "shot_max) P*",
       k23At37, "notify wrong rank", "reduce: notify 'done'", kEveryRank},
      {"all_reduce_add_rms_norm P*", k23At3, "notify wrong rank", "reduce_norm: notify 'done'",
       kEveryRank},
      {"@(embedding|moe_combine) P*", k23At9, "notify wrong rank", "sum: notify 'done'",
       kEveryRank},
      {"@(all_gather|reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*|all_reduce_two_shot|all_"
       "reduce_two_shot_max|all_to_all|broadcast|ag_gemm|ag_gemm_fp8*|all_reduce_add_rms_norm|"
       "embedding|lm_head|moe_combine) P*",
       k23AtNoneAnd3And9And37, "wait for wrong channel", "on_end: wait 'done'", kEveryChannel},
      {"gemm_ar_@(two_shot|shared) P*", k23At16And24, "wait for wrong channel",
       "on_end: wait 'gathered'", kEveryChannel},
      {"@(all_gather|reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*|all_reduce_two_shot|all_"
       "reduce_two_shot_max|all_to_all) P*",
       k23AtNoneAnd37, "wait in wrong rotation", "on_end: wait 'done'", kEveryChannel},
      {"@(all_gather|all_reduce_two_shot|all_reduce_two_shot_max|ag_gemm|ag_gemm_fp8*|lm_head) P*",
       k23At37, "notify wrong channel", "gather: notify 'done'", kSwappedSources},
      {"@(all_to_all|broadcast) P*", k23AtNoneAnd37, "notify wrong channel", "pull: notify 'done'",
       kSwappedSources},
      {"@(reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*) P*", k23At37,
       "notify wrong channel", "reduce: notify 'done'", kSwappedSources},
      {"gemm_ar_two_shot P*", k23At24, "notify wrong channel", "reduce: notify 'gathered'",
       kSwappedSources},
      {"all_reduce_add_rms_norm P*", k23At3, "notify wrong channel", "reduce_norm: notify 'done'",
       kSwappedSources},
      {"@(embedding|moe_combine) P*", k23At9, "notify wrong channel", "sum: notify 'done'",
       kSwappedSources},
      {"@(all_gather|reduce_scatter|reduce_scatter_p*|all_reduce_one_shot*|all_reduce_two_shot|all_"
       "reduce_two_shot_max|all_to_all) P*",
       k23AtNoneAnd37, "skip first iteration", "on_end: loop 'done'", kOwnRank},
      {"broadcast P*", k23At37, "skip last iteration", "on_end: loop 'done'", kOwnRank},
      {"all_reduce_ring P*", k23At37, "drop wait", "ring: wait 'ready'", kRingReady},
      {"all_reduce_ring P*", k23At37, "wait after the access", "ring: wait 'ready'", kRingReady},
      {"@(gemm_ar|gemm_ar_fp8*) P*", k23At24, "access on wrong rank",
       "gemm@(|.consumer): store 'slots'",
       "the loop stores at every rank before it notifies any: only the order changes"},
      {"@(scatter|send) P*", k23At37, "condition always holds", "on_start: when 'ready'",
       "the others' notifies are waited for by nobody"},
      {"@(reduce|gather|scatter|send) P*", k23At37, "@(duplicate notify|notify too much)",
       "on_start: notify 'ready'", kOneArrival},
      {"send P", k2At37, "access on wrong rank", "receive: copy 'in'",
       "the wrong rank is the receiver, which may read its own input: a matter of values"},
      {"scatter P*", k23At37, "wait for wrong channel", "on_end: wait 'done'", kEveryChannel},
      {"scatter P*", k23At37, "notify wrong rank", "on_start: notify 'ready'", kEveryRank},
      {"scatter P*", k23At37, "notify wrong channel", "scatter: notify 'done'", kSwappedSources},
      {"scatter P", k2At37, "skip first iteration", "on_end: loop 'done'", kOwnRank},
      {"reduce P*", k23At37, "@(wait for wrong channel|wait in wrong rotation)",
       "reduce: wait 'ready'", kEveryChannel},
      {"reduce P*", k23At37, "skip first iteration", "reduce: loop 'ready'", kOwnRank},
      {"all_reduce_two_shot_max P*", k23At37, "wait after the access", "reduce: wait 'ready'",
       "what moves ahead of it reads the own input"},
      {"reduce P", k2At37, "wait after the access", "reduce: wait 'ready'",
       "what moves ahead of it reads the own input"},
      {"reduce P*", k23At37, "notify wrong rank", "reduce: notify 'done'", kEveryRank},
      {"reduce P*", k23At37, "notify wrong channel", "on_start: notify 'ready'", kSwappedSources},
      {"reduce P*", k23At37, "access on wrong rank", "reduce: load 'in'*",
       "every rank's input has been waited for: a matter of values"},
      {"gather P", k2At37, "notify wrong rank", "gather: notify 'done'",
       "each worker copies own rows after the last of the other rank, and tells that rank then"},
      {"broadcast P*", k23At37, "condition always holds", "on_start: when 'ready'",
       "the others' notifies are waited for by nobody"},
      {"gemm_ar_two_shot P*", k23At16And24, "fewer slots", "buffer 'slots'",
       "a launch ends after every owner's sums have come, so one slot is enough"},
      {"gemm_ar_two_shot P*", k23At16And24, "access on wrong rank",
       "@(reduce|gemm.consumer): store 'out'",
       "the loop stores at every rank before it notifies any: only the order changes"},
      {"gemm_ar_two_shot P*", k23At24, "notify wrong rank", "reduce: notify 'gathered'",
       kEveryRank},
      {"gemm_ar_shared P*", k23At24, "notify wrong rank",
       "gemm@(|.consumer): notify '@(arrived|gathered)'", kEveryRank},
      {"gemm_ar_shared P*", k23At24, "notify wrong channel", "gemm@(|.consumer): notify 'gathered'",
       kSwappedSources},
      {"gemm_ar_shared P*", k23At24, "access on wrong rank", "gemm@(|.consumer): store 'out'",
       "the loop stores at every rank before it notifies any: only the order changes"},
      {"gemm_ar_shared P gpu", k23At16, "packet to wrong slot",
       "gemm.consumer: store_packet 'parts'",
       "every rank's part is received at once: senders swap places, a matter of values"},
      {"@(reduce_scatter|reduce_scatter_p*|all_reduce_two_shot|all_reduce_two_shot_max) P*",
       k23At37, "notify wrong channel", "on_start: notify 'ready'", kSwappedSources},
      {"@(reduce_scatter|reduce_scatter_p*|all_reduce_two_shot|all_reduce_two_shot_max) P*",
       k23At37, "@(wait for wrong channel|wait in wrong rotation)", "reduce: wait 'ready'",
       kEveryChannel},
      {"@(reduce_scatter|reduce_scatter_p*|all_reduce_two_shot|all_reduce_two_shot_max) P*",
       k23At37, "skip first iteration", "reduce: loop 'ready'", kOwnRank},
      {"@(reduce_scatter|reduce_scatter_p*|all_reduce_two_shot|all_reduce_two_shot_max) P*",
       k23At37, "access on wrong rank", "reduce: load 'in'*",
       "every rank is ready and hears when all parts are read: a matter of values"},
      {"@(all_reduce_two_shot|all_reduce_two_shot_max) P*", k23At37,
       "@(duplicate notify|notify too much)", "reduce: notify 'reduced'", kOneArrival},
      {"all_reduce_one_shot* P*", k23At37, "@(duplicate notify|notify too much)",
       "reduce: notify 'arrived'", kOneArrival},
      {"all_reduce_one_shot* P*", k23At37, "notify wrong rank", "reduce: notify 'arrived'",
       kEveryRank},
      {"all_reduce_one_shot* P*", k23At37, "access on wrong rank", "reduce: store 'inbox'",
       "the loop stores at every rank before it notifies any: only the order changes"},
      {"all_reduce_one_shot* P*", k23At37, "fewer slots", "buffer 'inbox'", kToldOfRead},
      {"ag_gemm_push P gpu", k23At16, "@(duplicate notify|notify too much)",
       "push: notify 'arrived'", kOneArrival},
      {"ag_gemm_push P gpu", k23At16, "notify wrong channel", "push: notify 'arrived'",
       kSwappedSources},
      {"ag_gemm_push P gpu", k23At16, "wait for wrong channel", "gemm.producer: wait 'arrived'",
       kEveryChannel},
      {"@(gemm_rs|gemm_rs_fp8*) P gpu", k23At16, "@(duplicate notify|notify too much)",
       "gemm.consumer: notify 'arrived'", kOneArrival},
      {"push_all_reduce P*", k23At37, "@(duplicate notify|notify too much)",
       "reduce: notify '@(arrived|reduced)'", kOneArrival},
      {"push_all_reduce P*", k23At37, "fewer slots", "buffer '@(slots|sums)'", kToldOfRead},
      {"@(all_gather|reduce_scatter|all_reduce|all_to_all)_int8 P*", k23AtNoneAnd37,
       "@(duplicate notify|notify too much)",
       "@(gather|reduce|exchange): notify '@(arrived|reduced)'", kOneArrival},
      {"@(all_gather|reduce_scatter)_int8 P*", k2At37, "fewer slots", "buffer '@(slots|scales)'",
       kToldOfRead},
      {"@(all_reduce|all_to_all)_int8 P*", k23AtNoneAnd37, "fewer slots",
       "buffer '@(slots|scales|sums|scales_of_sums)'", kToldOfRead},
      {"gemm_ar_two_shot P gpu", k23At16, "notify wrong channel",
       "gemm.consumer: notify 'gathered'", kSwappedSources},
      {"gemm_ar_two_shot P gpu", k23At16, "notify wrong rank", "gemm.consumer: notify 'gathered'",
       kEveryRank},
      {"gemm_ar_two_shot P*", k23At16And24, "condition always holds", "on_end: when 'gathered'",
       "the condition holds for every owner"},
      {"@(gemm_rs|gemm_rs_fp8*|gemm_ar_two_shot) P gpu", k23At16, "condition always holds",
       "gemm.consumer: when 'arrived' #3", kOwnPart},
      {"gemm_rs_copy P gpu", k23At16, "condition always holds", "gemm.consumer: when 'computed'",
       kOwnPart},
      {"gemm_rs_copy P gpu", k23At16, "skip first iteration", "on_start: loop 'ready'", kOwnPart},
      {"lm_head P*", k23At9, "@(duplicate notify|notify too much)", "on_start: notify 'ready'",
       kOneArrival},
      {"lm_head P*", k23At9, "notify wrong rank", "on_start: notify 'ready'", kEveryRank},
      {"lm_head P*", k23At9, "notify wrong channel",
       "@(on_start: notify 'ready'|gemm@(|.consumer): notify 'gathered')", kSwappedSources},
      {"lm_head P*", k23At9, "@(wait for wrong channel|wait in wrong rotation)",
       "gemm@(|.consumer): wait 'ready'", kEveryChannel},
      {"lm_head P*", k23At9, "skip first iteration", "gemm@(|.consumer): loop 'ready'", kOwnRank},
      {"lm_head P*", k23At9, "@(duplicate notify|notify too much)", "gemm: notify 'gathered'",
       kOneArrival},
      {"lm_head P*", k23At9, "notify wrong rank", "gemm@(|.consumer): notify 'gathered'",
       kEveryRank},
      {"lm_head P*", k23At9, "access on wrong rank", "gemm@(|.consumer): store 'logits'",
       "the loop stores at every rank before it notifies any: only the order changes"},
      {"lm_head P*", k23At9, "wait for wrong channel", "on_end: wait 'gathered'", kEveryChannel},
      {"@(ag_gemm|ag_gemm_fp8*) P*", k23At16And24, "condition always holds",
       "gather: when '@(ready|done)'", kEveryTile},
      {"@(ag_gemm|ag_gemm_fp8*) P*", k23At16And24, "@(duplicate notify|notify too much)",
       "gather: notify 'done'", kOneArrival},
      {"ag_gemm_gathered P gpu", k23At16, "@(duplicate notify|notify too much)",
       "push: notify 'arrived'", kOneArrival},
      {"@(ag_gemm|ag_gemm_fp8*) P gpu", k23At16, "@(duplicate notify|notify too much)",
       "gather: notify 'arrived'", kOneArrival},
      {"@(ag_gemm|ag_gemm_fp8*) P*", k2At16And24, "access on wrong rank",
       "gather: copy '@(a|scale_a)'",
       "of two ranks the other one is the own: its rows may always be read, a matter of values"},
      {"@(ag_gemm|ag_gemm_fp8*|ag_gemm_gathered|ag_gemm_push) P*", k23At24,
       "condition always holds", "gemm: when 'arrived'",
       "tiles without rows wait for what comes anyway, and write nothing"},
      {"@(ag_gemm|ag_gemm_fp8*|ag_gemm_gathered|ag_gemm_push) P*", k23At24,
       "condition always holds", "gemm: when 'arrived' #2",
       "the own rows are multiplied instead of the peer's: a matter of values"},
      {"@(ag_gemm|ag_gemm_fp8*|ag_gemm_gathered|ag_gemm_push) P gpu", k23At16,
       "condition always holds", "gemm.@(producer|consumer): when 'arrived' #2",
       "the own rows are multiplied instead of the peer's: a matter of values"},
      {"@(ag_gemm|ag_gemm_fp8*|ag_gemm_gathered) P*", k23At24, "skip first iteration",
       "gemm: loop 'arrived'",
       "a queue copies a rank's rows in the order of their channels: the later channel implies the "
       "one left out"},
      {"ag_columns_gemm* P*", k23At16And24, "@(duplicate notify|notify too much)",
       "@(on_start: notify 'ready'|push: notify 'arrived')", kOneArrival},
      {"ag_columns_gemm* P", k23At24, "condition always holds", "gemm: when 'arrived'",
       "tiles without rows wait for what comes anyway, and write nothing"},
      {"ag_columns_gemm@(|_fp8_block) P", k3At24, "skip first iteration", "gemm: loop 'arrived' #2",
       "a queue copies a rank's rows in the order of their channels: the later channel implies the "
       "one left out"},
      {"ag_columns_gemm_fp8_block P gpu", k23At16, "release before await",
       "gemm.consumer: pipe_release 'scale_b' @(#9|#12)", kReadByThreads},
      {"reduce_scatter_add_rms_norm P", k23At3, "@(duplicate notify|notify too much)",
       "@(on_start: notify 'ready'|reduce_norm: notify 'done')", kOneArrival},
      {"reduce_scatter_add_rms_norm P", k23At3, "notify wrong channel",
       "@(on_start: notify 'ready'|reduce_norm: notify 'done')", kSwappedSources},
      {"reduce_scatter_add_rms_norm P", k23At3, "notify wrong rank",
       "@(on_start: notify 'ready'|reduce_norm: notify 'done')", kEveryRank},
      {"reduce_scatter_add_rms_norm P", k23At3, "@(wait for wrong channel|wait in wrong rotation)",
       "@(reduce_norm: wait 'ready'|on_end: wait 'done')", kEveryChannel},
      {"reduce_scatter_add_rms_norm P", k23At3, "skip first iteration", "reduce_norm: loop 'ready'",
       kOwnRank},
      {"reduce_scatter_add_rms_norm P", k23At3, "access on wrong rank",
       "reduce_norm: load 'x'@(| #2| #3)",
       "every rank's rows may be read by then: which are added is a matter of values"},
      {"rms_norm_columns P", k23At3, "condition always holds", "norm: when", kNoSuchRows},
      {"rms_norm_columns P", k23At3, "condition always holds", "norm: when #2",
       "a turn before the first tile normalises rows that nobody has"},
      {"sequence_attention P*", k234At14And25, "condition always holds",
       "attend@(|.producer|.consumer): when@(| 'arrived'@(| #2))",
       "a tile that has no rows, or sees no keys of a chunk, waits for what comes anyway"},
      {"ring_attention P", k23At14, "condition always holds", "attend: when 'arrived'@(| #2)",
       "a tile that has no rows, or sees no keys of a chunk, waits for what comes anyway"},
      {"ring_attention P*", k34At14And25, "wait for wrong channel", "send: wait 'arrived'",
       "the chunk behind it, which comes through the same queue, is there later"},
      {"sequence_attention P*", k234At14And25, "condition always holds",
       "attend: when 'arrived' #3", kOwnKeys},
      {"ring_attention P", k23At14, "condition always holds", "attend: when 'arrived' #3",
       kOwnKeys},
      {"@(sequence_attention|ring_attention) P*", k234At14And25, "condition never holds",
       "attend@(|.producer|.consumer): when@(| 'arrived') #2",
       "fewer keys are looked at: a matter of values"},
      {"@(sequence_attention|ring_attention) P*", k234At14And25,
       "@(duplicate notify|notify too much)", "on_start: notify 'ready'", kOneArrival},
      {"sequence_attention P@(| gpu)", k2At14,
       "@(drop on_end|drop wait|lower threshold|skip first iteration|skip last iteration)",
       "on_end@(|: wait 'arrived'|: loop 'arrived')",
       "a rank has one sender, whose next launch begins after all that it has sent"},
      {"sequence_attention P", k3At14, "skip first iteration", "on_end: loop 'arrived'",
       "the first wait is for the earlier chunk of the next rank, which some tile of each of three "
       "ranks has waited for, whatever the bound"},
      {"sequence_attention P window", k4At25,
       "@(drop on_end|drop wait|lower threshold|skip first iteration|skip last iteration)",
       "on_end@(|: wait 'arrived'|: loop 'arrived')", kOnlySeenIsSent},
      {"ring_attention P*", k34At14And25, "condition always holds", "send: when 'arrived'",
       "the own keys are sent in place of what arrived: a matter of values"},
      {"ring_attention P*", k4At14And25, "@(duplicate notify|notify too much)",
       "send: notify '@(arrived|passed)'", kOneArrival},
      {"@(ring_attention|token_ring) P window", k4At25, "condition always holds",
       "attend: when '@(arrived|returned)'",
       "who sees nothing of another rank waits for what comes anyway"},
      {"@(ag_grouped_gemm|grouped_gemm_rs|moe_layer) P*", k23At6,
       "@(duplicate notify|notify too much)", "on_start: notify '@(ready|free)'", kOneArrival},
      {"@(moe_route|moe_route_limited) P gpu", k23At1And6, "@(duplicate notify|notify too much)",
       "@(score.consumer|route): notify '@(scored|counted)'", kOneArrival},
      {"@(moe_route|moe_route_limited) P*", k23At1And6And7, "@(duplicate notify|notify too much)",
       "route: notify '@(routed|placed)'", kOneArrival},
      {"ag_grouped_gemm P gpu", k23At6, "@(duplicate notify|notify too much)",
       "@(send: notify 'arrived'|sort: notify 'in_order')", kOneArrival},
      {"ag_grouped_gemm P*", k23At6, "condition always holds",
       "@(gemm|gemm.producer|sort): when 'arrived'*", kRowsAnyway},
      {"ag_grouped_gemm P*", k23At6, "condition never holds", "gemm: when '@(arrived|in_order)'",
       "nothing is multiplied: a matter of values"},
      {"sorted_gemm_rs P*", k23At6, "@(duplicate notify|notify too much)",
       "on_start: notify 'free'", kOneArrival},
      {"sorted_gemm_rs P*", k23At6, "notify wrong rank", "on_start: notify 'free'", kEveryRank},
      {"sorted_gemm_rs P*", k23At6, "wait after the access", "gemm@(|.consumer): wait 'free'",
       "what moves ahead of it reads the own rank's tables, not the parts that it stores to"},
      {"sorted_gemm_@(rs|ar) P", k23At6, "@(notify too much|lower threshold)",
       "gemm: @(notify|wait) 'computed'", kTogether},
      {"sorted_gemm_@(rs|ar) P gpu", k23At6, "condition always holds",
       "gemm.consumer: when 'computed' #2", kOneTile},
      {"@(grouped_gemm_rs|grouped_gemm_ar|moe_layer) P*", k23At6,
       "@(notify wrong channel|wait for wrong channel)",
       "@(gemm: notify|layer: notify|reduce: wait) 'computed'*",
       "both sides take the two blocks in order: who has waited for the later one may read both"},
      {"grouped_gemm_@(rs|ar) P*", k23At6, "*", "reduce.producer: @(loop|wait) '@(summed|free)'",
       "what others send or are sent is not put in slots: the consumer waits for them itself"},
      {"grouped_gemm_@(rs|ar) P*", k23At6, "*", "reduce.consumer: wait '@(computed|free)'*",
       kPutAfterwards},
      {"grouped_gemm_@(rs|ar) P*", k23At6, "pipe of one slot", "reduce: pipe '*'",
       "each row is got and released by itself"},
      {"grouped_gemm_@(rs|ar) P*", k23At6, "@(duplicate notify|notify too much)",
       "@(reduce|reduce.consumer): notify '@(summed|stored)'", kOneArrival},
      {"grouped_gemm_@(rs|ar) P", k2At6, "wait for wrong channel",
       "reduce.producer: wait 'computed'*",
       "both sides take the two blocks in order: who has waited for the later one may read both"},
      {"moe_layer P*", k23At6, "condition always holds",
       "@(layer: when '@(arrived|made)'@(| #2| #3)|reduce: when 'arrived'@(| #2| #3))",
       kRowsAnyway},
      {"moe_layer P*", k23At6, "condition never holds",
       "layer: when '@(arrived|made|in_order)'@(| #2)",
       "nothing is multiplied: a matter of values"},
      {"moe_layer P gpu", k23At6, "@(duplicate notify|notify too much)",
       "@(send: notify 'arrived'|reduce: notify 'in_order')", kOneArrival},
      {"moe_layer P gpu", k23At6,
       "@(drop wait|lower threshold|wait for wrong channel|wait after the access)",
       "layer.consumer: wait '@(in_order|made)'", kPutAfterwards},
      {"@(grouped_gemm_@(rs|ar)|moe_layer|ep_moe_layer) P*", k23At6,
       "@(lower threshold|notify too much)",
       "@(gemm|layer|reduce)@(|.producer): @(notify|wait) '@(made|computed)'@(| #2)", kTogether},
      {"@(grouped_gemm_@(rs|ar)|moe_layer|ep_moe_layer) P gpu", k23At6, "condition always holds",
       "@(gemm|layer).consumer: when '@(made|computed)'", kOneTile},
      {"moe_layer P gpu", k23At6, "wait after the access",
       "layer.consumer: wait '@(computed|free)'",
       "it still comes before what it guards: what moves ahead of it has a wait of its own"},
      {"ep_moe_layer P*", k23At6, "@(duplicate notify|notify too much)",
       "@(on_start: notify 'ready'|layer@(|.consumer): notify '@(told|arrived|summed)')",
       kOneArrival},
      {"ep_moe_layer P*", k23At6, "*", "layer@(|.consumer): @(wait|loop) 'ready' #2", kTablesFirst},
      {"ep_moe_layer P*", k23At6, "wait after the access",
       "layer@(|.producer|.consumer): wait '@(ready|arrived|computed|tables)'@(| #2)",
       kReadsTables},
      {"ep_moe_layer P*", k23At6, "@(drop wait|lower threshold|wait for wrong signal)",
       "layer@(|.producer|.consumer): wait 'tables' #2", kTablesFirst},
      {"ep_moe_layer P*", k23At6, "condition always holds", "layer@(|.consumer): when 'told' #3",
       "parts behind the last rank's wait for what comes anyway"},
      {"ep_moe_layer P*", k23At6, "notify before the access", "layer@(|.consumer): notify 'placed'",
       "the worker's next turns tell of it, too"},
      {"ep_moe_layer P gpu", k23At6,
       "@(drop wait|lower threshold|wait for wrong channel|wait for wrong signal|wait after the "
       "access)",
       "layer.consumer: wait '@(arrived|made)'", kPutAfterwards},
      {"ep_moe_layer P gpu", k23At6, "skip @(first|last) iteration",
       "layer.consumer: loop 'arrived' #2", kPutAfterwards},
      {"ep_moe_layer P*", k23At6, "condition always holds",
       "layer@(|.producer|.consumer): when '@(arrived|made)'@(| #2| #3)", kRowsAnyway},
      {"ep_moe_layer P*", k23At6, "condition never holds",
       "layer@(|.consumer): when '@(arrived|made)'@(| #2)",
       "nothing is multiplied: a matter of values"},
      {"ep_moe_layer P@(| gpu)", k23At6, "*", "on_end@(|: @(wait|loop) 'arrived')",
       "who sends tokens multiplies or sums afterwards: the others' sums come after their tokens, "
       "and the launch ends after them"},
      {"ep_moe_layer P", k23At6, "condition always holds", "layer: when 'ready' #3",
       "one worker tells and sends: behind its last tokens it tells of none, and only later"},
      {"ep_moe_layer P", k3At6, "condition always holds", "layer: when 'told'", kEveryTile},
      {"flash_decode P*", k23At1With33, "packet to wrong rank",
       "combine: store_packet 'inbox'@(| #2| #3)", kEveryRank},
      {"flash_decode P*", k23At1With33, "packet to wrong slot",
       "combine: store_packet 'inbox'@(| #2| #3)",
       "every rank's part is received at once: senders swap places, a matter of values"},
      {"flash_decode P*", k23At1With33, "condition always holds", "combine: when@(| #2)",
       "rows past m are sent as well, and stored nowhere"},
      {"@(token_ring|gemm_a2a|a2a_gemm) P*", k234At10And14And25,
       "@(duplicate notify|notify too much)",
       "@(on_start: notify 'ready'|attend@(|.consumer): notify 'returned'|send: notify 'arrived')",
       kOneArrival},
      {"gemm_ag@(|_fp8) P*", k23At16And24, "@(duplicate notify|notify too much)",
       "on_start: notify 'ready'", kOneArrival},
      {"gemm_ag@(|_fp8) P gpu", k3At16, "@(duplicate notify|notify too much)",
       "gemm.consumer: notify 'stored'", kOneArrival},
      {"gemm_ag@(|_fp8) P", k23At24, "condition always holds", "gemm: when 'ready'",
       "tiles without rows wait for what comes anyway, and write nothing"},
      {"gemm_a2a P gpu", k23At10, "@(duplicate notify|notify too much)",
       "gemm.consumer: notify 'stored'", kOneArrival},
      {"token_ring P*", k2At14, "@(drop wait|wait after the access)", "send: wait 'ready'",
       "of two ranks each has one slot, and has read it before the launch of who writes it ends"},
      {"@(gemm_a2a|a2a_gemm) P*", k23At10, "condition always holds",
       "gemm@(|.producer|.consumer): when '@(ready|arrived)'",
       "tiles without rows wait for what comes anyway, and write nothing"},
      {"gemm_a2a P*", k23At10, "condition always holds", "gemm@(|.consumer): when 'stored'",
       kOwnPart},
      {"a2a_gemm P gpu", k23At10, "condition always holds", "gemm.consumer: when @(#3|#5)",
       "it asks for steps of the main loop, which every part has"},
      {"epilogue_warp", k2AtNone, "@(duplicate notify|notify too much)",
       "@(on_start: notify 'ready'|multiply.epilogue: notify 'arrived')", kOneArrival},
      {"@(* gpu|piped|epilogue_warp)", k123AtNoneAnd6, "pipe of one slot", "*",
       "the pipe works with one slot, only slower"},
      {"piped", k1AtNone, "condition always holds", "gemm.math: when", kEveryTile},
      {"gemm_split_k P gpu", k23At16, "condition always holds", "gemm.consumer: when #2",
       "it asks for steps of the main loop, which every part has"},
      {"piped", k1AtNone, "drop fence", "gemm.math: fence",
       "the condition holds for every tile, so the fence is never reached"},
  };
  return all;
}

namespace {

// "gemm P gpu" of "gemm P=2 gpu".
std::string with_any_ranks(const std::string& label) {
  static const std::regex ranks(" P=[0-9]+");
  return std::regex_replace(label, ranks, " P");
}

}  // namespace

bool explains(const Explanation& explanation, const Survivor& survivor) {
  auto matches = [](const char* pattern, const std::string& text) {
    return fnmatch(pattern, text.c_str(), FNM_EXTMATCH) == 0;
  };
  auto names = [](const auto& all, const auto& one) {
    return std::ranges::find(all, one) != all.end();
  };
  return names(explanation.at.ranks, survivor.ranks) &&
         names(explanation.at.bounds, survivor.bounds) &&
         matches(explanation.program, with_any_ranks(survivor.label)) &&
         matches(explanation.kind, survivor.kind) && matches(explanation.site, survivor.site);
}

const Explanation* find_explanation(const Survivor& survivor) {
  for (const Explanation& e : explanations()) {
    if (explains(e, survivor)) return &e;
  }
  return nullptr;
}

}  // namespace stretto
