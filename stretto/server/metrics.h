// Counters, gauges and histograms of the server in Prometheus' text form, under vLLM's names, which
// dashboards and load generators read. docs/guide/serving.md lists them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "stretto/engine/serving.h"

namespace stretto {

class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);  // ascending
  void observe(double value);
  // Lines `name_bucket{labels,le="0.1"} 3`, `name_sum`, `name_count`.
  std::string text(const std::string& name, const std::string& labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;  // [bounds + 1]
  double sum_ = 0;
};

// What one answer took; seconds.
struct AnswerTimes {
  double queue = 0, prefill = 0, decode = 0, first_token = 0, whole = 0;
};

// How large it was.
struct AnswerSizes {
  std::int64_t prompt = 0, generated = 0;  // tokens
  std::int64_t cached = 0;                 // of the prompt, found in the cache
  std::int64_t preemptions = 0;            // times that it was cut short
};

class Metrics {
 public:
  explicit Metrics(std::string model_name);

  void count_prompt(std::int64_t tokens);
  // What a request asks for, once it is taken.
  void count_request(std::int64_t n, std::int64_t max_tokens);
  // The longest of a request's answers.
  void count_longest(std::int64_t tokens);
  void count_token(double seconds_since_the_last);  // negative: the first of an answer
  // `reason`: "stop", "length", "abort" or "error".
  void count_end(const std::string& reason, const AnswerSizes& sizes, const AnswerTimes& times);
  void count_refused();  // the queue was full
  // Tokens so far.
  struct Totals {
    std::uint64_t prompt = 0, generated = 0;
  };
  Totals totals() const;
  // Of an HTTP request.
  void count_response(const std::string& path, int status);

  struct Gauges {
    std::size_t running = 0, waiting = 0, connections = 0;
    std::int64_t preemptions = 0, restarts = 0, prefix_queries = 0, prefix_hits = 0;
    std::int64_t chosen_by_device = 0, chosen_by_host = 0;  // tokens
    double device_works = 0, device_waits = 0;              // seconds
    double cache_use = 0;                                   // of 1
    std::int64_t cache_pages = 0, page_tokens = 0;
    std::string cache_dtype;
    StepSizes steps;
  };
  std::string text(const Gauges& gauges) const;

 private:
  std::string text_of(const StepSizes& steps) const;

  std::string labels_;
  mutable std::mutex mutex_;
  std::uint64_t prompt_tokens_ = 0, tokens_ = 0, refused_ = 0;
  std::map<std::string, std::uint64_t> ended_;                      // by reason
  std::map<std::pair<std::string, int>, std::uint64_t> responses_;  // by path and status
  Histogram first_token_, between_tokens_, per_token_, whole_, queue_, inference_, prefill_,
      decode_;
  Histogram prompt_sizes_, computed_prompts_, answer_sizes_, longest_answers_, limits_;
  Histogram numbers_of_answers_, preemptions_;
};

}  // namespace stretto
