// One rank's calls of operators that were made before: which executables and copies, with which
// arrays in which place. Found by what a call looks like, so that a repeated one costs no Python
// code. Comes after session_executable.h; _group.py makes the first call of each kind and adds it
// here. Calls that PyTorch's dispatcher makes have plans of their own, which torch_operators.h
// adds.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "array_view.h"
#include "plan_graphs.h"
#include "session_executable.h"

namespace stretto::python {

// A call: the operator, its option (a dimension, a root), the arrays' layouts, which of them are
// symmetric and which are the same. One that writes into a part of what it reads has no key.
struct CallKey {
  static constexpr std::size_t kMaxWords = 160;
  std::int64_t words[kMaxWords];
  std::size_t num_words = 0;

  bool push(std::int64_t word) {
    if (num_words == kMaxWords) return false;
    words[num_words++] = word;
    return true;
  }
  std::span<const std::int64_t> view() const { return {words, num_words}; }
};

// A rank is in a call of another thread; its own goes on, and this one counts for nothing.
class AnotherThread : public UserError {
 public:
  using UserError::UserError;
};

// What it takes to make a tensor, in the numbers of torch_abi.h.
struct TensorLike {
  std::vector<std::int64_t> shape, strides;
  std::int32_t dtype = 0, device_type = 0, device_index = 0;
};

class TorchResults;
struct TorchAbi;

class PlanCache {
 public:
  static constexpr std::size_t kMaxArrays = 16;
  static constexpr std::size_t kMaxPlans = 4096;     // then it starts afresh
  static constexpr std::size_t kMaxGraphSteps = 16;  // of a plan that becomes a graph
  static constexpr std::size_t kMaxGraphs = 512;     // that were made; then all are forgotten

  PlanCache(std::shared_ptr<Session> session, int rank, nanobind::object ndarray)
      : session_(std::move(session)), rank_(rank), reader_(std::move(ndarray)) {}

  ArrayReader& reader() { return reader_; }

  // Makes the call again: the result, `out` where it is given, a tuple where there are several,
  // None where there is none; null, and nothing done, for a call that has no plan. Of a tuple `out`
  // those that are None are made. Errors as SessionExecutable::launch; UserError while the rank is
  // in a call.
  nanobind::object replay(nanobind::handle op, std::int64_t option, nanobind::handle out,
                          nanobind::args arrays);

  // A step of a call: a launch, or without an executable a copy of rows.
  struct Made {
    std::shared_ptr<SessionExecutable> executable;
    std::vector<std::uintptr_t> addresses;  // the executable's arguments; where to, where from
    std::vector<std::int64_t> extents;  // of a copy: rows, bytes of one, and apart there and here
    std::string said;                   // as SessionExecutable::launch() has it
  };
  // Memory that is there for as long as its owner; may be more than a plan needs.
  struct Fixed {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    nanobind::object owner;
  };
  // Keeps a call that was these steps and nothing else: each address lies in one of the arrays or
  // of the results, or in one of `fixed`, whose owner the plan has then; otherwise there is no
  // plan. `makers` make arrays for the results, by their places. `any_option`: the plan is that of
  // calls of every option in there, which is the last extent of its launches, and the number that
  // their words have behind `named`.
  struct AnyOption {
    std::int64_t least = 0, most = -1;  // none
    std::string named;                  // "tokens="
  };
  void add(nanobind::object op, std::int64_t option, nanobind::handle out, nanobind::args arrays,
           nanobind::handle result, std::vector<nanobind::object> makers,
           const std::vector<Made>& steps, const std::vector<Fixed>& fixed,
           const AnyOption& any_option);

  // A call by what it looks like.
  struct Call {
    CallKey key;
    ArrayView views[kMaxArrays];
    std::size_t num_arrays = 0;  // without the results
    std::size_t num_views = 0;   // with them
    std::int64_t option = 0;
  };
  // False for an array with which a call cannot have a plan.
  bool push(const ArrayView& array, Call* call) const;
  // Makes the call again. `make` puts a result like this one behind the views, without the
  // interpreter's lock, and says whether it could. False, and nothing done, for a call that has no
  // plan or no results. Errors as replay().
  using MakeResult = std::function<bool(const TensorLike& like, Call* call)>;
  bool repeat(Call* call, const MakeResult& make);
  // What plans did between watch() and the end of the watch, on this thread.
  struct Watched {
    std::vector<Made> steps;
    std::vector<Fixed> fixed;
    std::vector<nanobind::object> owners;  // of all of that
    std::size_t num_calls = 0;
  };
  void watch(Watched* watched);  // null: no longer
  // Keeps a call that was what one plan did: `call` with its results behind the arrays, of which
  // each that has elements was written by a step.
  void add(const Call& call, std::vector<TensorLike> results, const Watched& watched);

  void clear() { plans_.clear(); }
  // Of plans that launch it, or that copy from or to this memory or launch with it.
  void forget(const SessionExecutable& executable);
  void forget_memory(std::uintptr_t address, std::size_t bytes);

  // A rank is in one call at a time. False: it is in one.
  bool enter() { return !busy_.exchange(true, std::memory_order_acquire); }
  void leave() { busy_.store(false, std::memory_order_release); }

 private:
  struct Step {
    struct Argument {
      static constexpr std::size_t kFixed = static_cast<std::size_t>(-1);
      std::size_t array;         // the results behind the others, or kFixed
      std::size_t offset_bytes;  // in the array, or the address
    };
    std::shared_ptr<SessionExecutable> executable;  // null: a copy
    std::vector<Argument> arguments;
    std::vector<std::int64_t> extents;
    std::string said;  // of a plan of any option what comes before it
    std::string said_after;
  };
  // What a launch is given beside its arguments.
  struct Sizes {
    std::vector<std::int64_t> extents_of_option;
    std::string said_of_option;
    std::span<const std::int64_t> extents;
    const std::string* said;
  };
  struct Plan {
    std::vector<Step> steps;
    // Of the results of replay(), by place; null for those of the caller.
    std::vector<nanobind::object> makers;
    std::shared_ptr<const TorchResults> tensors;  // makes them, if it is there
    AnyOption any_option;
    bool is_tuple = false;                    // what replay() returns
    std::vector<TensorLike> results;          // of repeat()
    std::vector<nanobind::object> kept;       // whose addresses are in the key, or which own memory
    std::unique_ptr<PlanGraphs> graphs = {};  // where it may be one
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::span<const std::int64_t> words) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::span<const std::int64_t> a, std::span<const std::int64_t> b) const {
      return std::ranges::equal(a, b);
    }
  };

  // False for a call that cannot have a plan.
  bool describe(nanobind::handle op, std::int64_t option, nanobind::handle out,
                const nanobind::args& arrays, Call* call) const;
  bool describe_array(const ArrayView& view, std::size_t place, Call* call) const;
  // Reads a result behind the others. `made`: by a plan, just now.
  bool read_result(nanobind::handle result, bool made, Call* call) const;
  // What replay() returns, where the plan makes some of it, read behind the others; null where one
  // is not read.
  nanobind::object make_results(const Plan& plan, nanobind::handle out, Call* call) const;
  static bool find(std::uintptr_t address, const Call& call, Step::Argument* found);
  // False where an address lies nowhere.
  static bool add_steps(const Call& call, const std::vector<Made>& steps,
                        const std::vector<Fixed>& fixed, Plan* plan);
  void keep(const Call& call, Plan plan);
  // Without the interpreter's lock.
  void run(const std::shared_ptr<const Plan>& plan, const Call& call, std::uintptr_t stream,
           Watched* watched);
  // The arguments of a step in this call.
  static std::span<std::byte* const> arguments_of(const Step& step, const Call& call,
                                                  std::byte* (&addresses)[kMaxArrays]);
  static void sizes_of(const Plan& plan, const Step& step, const Call& call, Sizes* sizes);
  // The plan of exactly this call, or of any option. Null: there is none.
  std::shared_ptr<const Plan> plan_of(Call* call) const;
  // Makes it one of any option where its steps are such; false where they are not.
  static bool open(const AnyOption& any_option, std::int64_t option, Plan* plan);
  // Whether it enqueues several things on a GPU, each program once: one graph.
  static bool may_be_graph(const Plan& plan, const Call& call);
  void run_as_graph(const std::shared_ptr<const Plan>& plan, const Call& call,
                    std::uintptr_t stream);
  void forget_graphs();
  // That the caller's graph has it.
  void mark_captured(const std::shared_ptr<const Plan>& plan);
  void enqueue(const Plan& plan, const Call& call, const cuda::Stream& on);
  static void copy_on_host(const Step& step, std::span<std::byte* const> addresses);
  static void copy(const Step& step, std::span<std::byte* const> addresses, const cuda::Stream& on);
  Watched* watched_by_this_thread() const;

  std::shared_ptr<Session> session_;
  int rank_;
  ArrayReader reader_;
  std::shared_ptr<const TorchAbi> abi_;
  std::unordered_map<std::vector<std::int64_t>, std::shared_ptr<const Plan>, Hash, Equal> plans_;
  // Plans that a graph has captured, which may run for as long as this lives.
  std::unordered_set<std::shared_ptr<const Plan>> captured_;
  std::optional<cuda::Stream> capturing_;  // what plans' graphs are made of
  std::size_t num_graphs_ = 0;             // made since all were forgotten
  std::atomic<bool> busy_{false};
  Watched* watched_ = nullptr;
  std::thread::id watching_;
};

}  // namespace stretto::python
