#include "bench/gpu/batch/sampling_time.h"

#include <algorithm>
#include <random>
#include <set>

#include "bench/gpu/batch/batch_samples.h"
#include "bench/gpu/harness/progress.h"
#include "stretto/model/gpu/gpu_choice.h"

namespace stretto::bench {
namespace {

std::vector<float> logits_by_lot(std::int64_t count, float spread, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.f, spread);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

// Rows whose token the definition would not choose.
int wrong_rows(const SamplingWishes& wishes, std::span<const float> logits,
               std::span<const ChoiceResult> got, std::size_t vocab, std::size_t count) {
  ChoiceScratch scratch;
  int wrong = 0;
  for (std::size_t i = 0; i < std::min(count, got.size()); ++i) {
    std::span<const float> row = logits.subspan(i * vocab, vocab);
    std::vector<float> changed(row.begin(), row.end());
    const Choice want = choose_token(changed, wishes.wish(i), scratch);
    const bool same =
        got[i].status == want.status && got[i].token == static_cast<unsigned>(want.token);
    wrong += same ? 0 : 1;
  }
  return wrong;
}

}  // namespace

std::vector<std::string> sampling_kinds() {
  return {"greedy", "temperature", "cuts", "all", "flat"};
}

SamplingWishes::SamplingWishes(const std::string& kind, std::int64_t rows, std::int64_t vocab,
                               std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool all = kind == "all", cuts = all || kind == "cuts" || kind == "flat";
  auto token_by_lot = [&] {
    return static_cast<unsigned>(random() % static_cast<std::uint64_t>(vocab));
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    ChoiceRow row{.random = random()};
    if (kind != "greedy") row.inverse_temperature = choice_inverse_temperature(0.8);
    if (cuts) {
      row.top_p = choice_top_p(0.9);
      row.min_weight = choice_min_weight(kind == "flat" ? 1e-4 : 0.02);
      row.top_k = kind == "flat" ? 0 : 50;
    }
    std::vector<ChoiceEdit> edits;
    if (all) {
      row.num_top = 5;
      row.repetition_penalty = 1.1f;
      std::set<unsigned> tokens;
      while (std::ssize(tokens) < std::min<std::int64_t>(1000, vocab / 2)) {
        tokens.insert(token_by_lot());
      }
      for (unsigned t : tokens) {
        const bool is_biased = edits.size() < 16;
        edits.push_back({.token = t,
                         .bias = is_biased ? 2.f : 0.f,
                         .minus = edits.size() % 4 == 0 ? 0.5f : 0.f,
                         .kinds = kChoiceRepeated});
      }
    }
    rows_.push_back(row);
    edits_.push_back(std::move(edits));
  }
  if (!all) return;
  allowed_.resize(static_cast<std::size_t>((vocab + 31) / 32));
  for (std::uint32_t& word : allowed_) word = static_cast<std::uint32_t>(random());
}

ChoiceWish SamplingWishes::wish(std::size_t row) const {
  return {.row = rows_[row], .edits = edits_[row], .allowed = allowed_};
}

Json time_sampling(GpuWorld& world, const SamplingSettings& s, double copied) {
  const cuda::Device& device = world.device(0);
  const cuda::Stream& stream = world.stream(0);
  const std::int64_t most = *std::max_element(s.rows.begin(), s.rows.end());
  GpuChooser chooser(device, s.vocab, most);
  cuda::DeviceMemory memory(device, static_cast<std::size_t>(most * s.vocab) * sizeof(float));
  cuda::Event begin(device, cuda::Event::Timing::kOn), end(device, cuda::Event::Timing::kOn);
  Json out = Json::array();
  for (const std::string& kind : sampling_kinds()) {
    const std::vector<float> logits =
        logits_by_lot(most * s.vocab, kind == "flat" ? 0.01f : 2.f, s.seed);
    stream.upload(memory.address(), logits.data(), memory.bytes());
    stream.synchronize();
    for (std::int64_t rows : s.rows) {
      const SamplingWishes lot(kind, rows, s.vocab, s.seed);
      std::vector<ChoiceWish> wishes;
      for (std::size_t i = 0; i < lot.size(); ++i) wishes.push_back(lot.wish(i));
      const std::span<const ChoiceResult> got = chooser.choose(stream, memory.address(), wishes);
      const int wrong = wrong_rows(lot, logits, got, static_cast<std::size_t>(s.vocab),
                                   static_cast<std::size_t>(s.compared));
      std::vector<double> us, call_us;
      constexpr int kTimes = 8;
      for (int i = 0; i < s.samples; ++i) {
        stream.record(begin);
        for (int k = 0; k < kTimes; ++k) chooser.replay(stream);
        stream.record(end);
        stream.synchronize();
        us.push_back(cuda::elapsed_ms(begin, end) * 1e3 / kTimes);
        const Clock::time_point called = Clock::now();
        chooser.choose(stream, memory.address(), wishes);
        call_us.push_back(seconds_since(called) * 1e6);
      }
      const double bound_us = 1e6 * static_cast<double>(rows * s.vocab) * sizeof(float) / copied;
      say("  {:11} {:4} rows: {:8.1f} us, the whole call {:8.1f} us, logits read once {:6.1f} us; "
          "{} of {} rows wrong",
          kind, rows, median(us), median(call_us), bound_us, wrong,
          std::min<std::int64_t>(rows, s.compared));
      out.push_back({{"kind", kind},
                     {"rows", rows},
                     {"vocab", s.vocab},
                     {"bound_us", bound_us},
                     {"wrong", wrong},
                     {"us", us},
                     {"call_us", call_us}});
    }
  }
  return out;
}

}  // namespace stretto::bench
