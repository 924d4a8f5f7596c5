// Picks how an operator runs at a shape: every candidate is ranked by the predicted time, the first
// few are measured where the caller can and wants to, and the choice is kept on disk. The unfused
// sequence is always among the candidates.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stretto/base/errors.h"
#include "stretto/ops/choose/candidates.h"
#include "stretto/ops/operator/rows_of.h"
#include "stretto/predict/machine.h"

namespace stretto {

struct RankedCandidate {
  static constexpr int kSequence = -1;
  int index = kSequence;  // in OpCandidates::fused
  double predicted_ms = 0;
  bool is_sequence() const { return index == kSequence; }
};

// Ascending in predicted time. The sequence counts with the best of each of its steps, as programs
// of ours. A candidate that cannot be built or predicted on this machine is left out. Where none is
// left, the error of the default.
std::vector<RankedCandidate> rank_candidates(const OpCandidates& candidates,
                                             const predict::Machine& machine, bool eager = false);

// Milliseconds of a launch, not above 0 where it does not run; and whether that is surely less than
// what the fastest of the candidates before takes, in turn with this one: how fast a GPU is depends
// on what it has done before.
struct MeasuredCandidate {
  double ms = 0;
  bool fastest = false;
};
using MeasureCandidate = std::function<MeasuredCandidate(const Candidate*)>;  // null: the sequence

struct ChooseOptions {
  predict::Machine machine;
  bool eager = false;        // launched one by one instead of from a graph
  bool allow_fused = true;   // false: the sequence is the only candidate, where there is one
  MeasureCandidate measure;  // empty: by prediction alone
  int most_measured = 8;     // fused candidates, best predictions first; and the sequence
  // Names what measure() compares with and where: "cuBLASLt 13.1 + NCCL 2.28, GPU 0: NVIDIA H200".
  // Without measure(): what keep_measured() has kept there comes before a prediction.
  std::string measured_on;
  bool use_cache = true;
};

struct ConfigChoice {
  bool is_sequence = false;
  std::string config;  // the candidate's; the steps' operators where it is the sequence
  double predicted_ms = 0;
  double measured_ms = 0;  // 0: by prediction alone
  bool from_cache = false;
};

// At m rows, the part of the predicted time of what is preferred (the default, or a sequence in its
// place) that another candidate's has to be below to be chosen without a measurement.
double part_to_be_chosen(std::int64_t m, bool sequence_preferred);

// `config` of `candidates` where its text is found, else null.
const Candidate* find_candidate(const OpCandidates& candidates, const std::string& config);

// Without a measurement it takes the default, or for few rows (OpCandidates::prefers_sequence) the
// sequence. Another has to be predicted 5 % faster than the default, a tenth with up to 256 rows,
// and a fifth faster than that sequence. STRETTO_CACHE_DIR/choices keeps the choice by machine,
// operator, shape, candidates, the default candidate's program and options.measured_on. A cache
// that cannot be read or written is not used. UserError where nothing runs.
ConfigChoice choose(const std::string& op, const OpShape& shape, const OpCandidates& candidates,
                    const ChooseOptions& options);

// Keeps a choice that the caller measured, for choose() with the same measured_on and without
// measure(). Does nothing where the cache cannot be written.
void keep_measured(const std::string& op, const OpShape& shape, const OpCandidates& candidates,
                   const ChooseOptions& options, const ConfigChoice& choice);

// What a choice among `candidates` runs, one after the other: the steps of a sequence each in the
// config that is predicted to be the fastest.
std::vector<Candidate> steps_of(const ConfigChoice& choice, const OpCandidates& candidates,
                                const ChooseOptions& options);
// Their programs.
std::vector<Program> programs_of(const ConfigChoice& choice, const OpCandidates& candidates,
                                 const ChooseOptions& options);

// As which choices of a product of this desc are kept.
template <typename Desc>
OpShape shape_of_product(const Desc& desc) {
  return {.world_size = rows_of(desc).world_size,
          .m = rows_of(desc).m,
          .n = desc.n,
          .k = desc.k,
          .dtype = desc.a_dtype,
          .target = Target::kCuda};
}

// What is chosen for a product of this desc.
template <typename Desc>
ConfigChoice choose_for(const std::string& op, const Desc& desc, const OpCandidates& candidates,
                        const ChooseOptions& options) {
  return choose(op, shape_of_product(desc), candidates, options);
}

// The program that is chosen for it, of candidates without a sequence.
template <typename Desc>
Program choose_program(const std::string& op, const Desc& desc, const OpCandidates& candidates,
                       const ChooseOptions& options) {
  return programs_of(choose_for(op, desc, candidates, options), candidates, options).front();
}

}  // namespace stretto
