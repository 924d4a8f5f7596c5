#include "stretto/server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stretto {
namespace {

// vLLM's, with finer ones below for devices that are faster than those they were made for.
const std::vector<double> kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kBetween = {.0005, .001, .002, .003, .005, .01, .025, .05,
                                      .075,  .1,   .15,  .2,   .3,   .4,  .5,   .75,
                                      1,     2.5,  5,    7.5,  10,   20,  40,   80};
const std::vector<double> kWhole = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                                     500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
const std::vector<double> kNumbers = {1, 2, 5, 10, 20};
const std::vector<double> kPreemptions = {0, 1, 2, 5, 10, 20, 50, 100};
// Powers of two, as vLLM has them: of 1 and from 8 on.
constexpr int kFirstStepBound = 3;

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string header(const std::string& name, const char* type, const char* help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds)
    : bounds_(std::move(upper_bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(at)];
  sum_ += value;
}

std::string Histogram::text(const std::string& name, const std::string& labels) const {
  std::string out;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, below);
  }
  out += fmt::format("{}_sum{{{}}} {}\n", name, labels, sum_);
  out += fmt::format("{}_count{{{}}} {}\n", name, labels, below);
  return out;
}

Metrics::Metrics(std::string model_name)
    : labels_(fmt::format("model_name=\"{}\",engine=\"0\"", escaped(model_name))),
      first_token_(kFirstToken),
      between_tokens_(kBetween),
      per_token_(kBetween),
      whole_(kWhole),
      queue_(kWhole),
      inference_(kWhole),
      prefill_(kWhole),
      decode_(kWhole),
      prompt_sizes_(kTokens),
      computed_prompts_(kTokens),
      answer_sizes_(kTokens),
      longest_answers_(kTokens),
      limits_(kTokens),
      numbers_of_answers_(kNumbers),
      preemptions_(kPreemptions) {
  for (const char* reason : {"stop", "length", "abort", "error"}) ended_[reason] = 0;
}

void Metrics::count_prompt(std::int64_t tokens) {
  std::lock_guard lock(mutex_);
  prompt_tokens_ += static_cast<std::uint64_t>(tokens);
}

void Metrics::count_request(std::int64_t n, std::int64_t max_tokens) {
  std::lock_guard lock(mutex_);
  numbers_of_answers_.observe(static_cast<double>(n));
  limits_.observe(static_cast<double>(max_tokens));
}

void Metrics::count_longest(std::int64_t tokens) {
  std::lock_guard lock(mutex_);
  longest_answers_.observe(static_cast<double>(tokens));
}

void Metrics::count_token(double seconds_since_the_last) {
  std::lock_guard lock(mutex_);
  ++tokens_;
  if (seconds_since_the_last >= 0) between_tokens_.observe(seconds_since_the_last);
}

void Metrics::count_end(const std::string& reason, const AnswerSizes& sizes,
                        const AnswerTimes& times) {
  std::lock_guard lock(mutex_);
  ++ended_[reason];
  if (sizes.generated == 0) return;
  prompt_sizes_.observe(static_cast<double>(sizes.prompt));
  computed_prompts_.observe(static_cast<double>(sizes.prompt - sizes.cached));
  answer_sizes_.observe(static_cast<double>(sizes.generated));
  preemptions_.observe(static_cast<double>(sizes.preemptions));
  first_token_.observe(times.first_token);
  whole_.observe(times.whole);
  queue_.observe(times.queue);
  inference_.observe(times.prefill + times.decode);
  prefill_.observe(times.prefill);
  decode_.observe(times.decode);
  if (sizes.generated > 1) {
    per_token_.observe(times.decode / static_cast<double>(sizes.generated - 1));
  }
}

void Metrics::count_refused() {
  std::lock_guard lock(mutex_);
  ++refused_;
}

Metrics::Totals Metrics::totals() const {
  std::lock_guard lock(mutex_);
  return {.prompt = prompt_tokens_, .generated = tokens_};
}

std::string Metrics::text_of(const StepSizes& steps) const {
  const std::string name = "vllm:iteration_tokens_total";
  std::string out = header(name, "histogram", "Rows of a step of the model.");
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < steps.counts.size(); ++i) {
    below += steps.counts[i];
    if (i > 0 && i < kFirstStepBound) continue;
    const std::string bound =
        i + 1 < steps.counts.size() ? fmt::format("{}", std::uint64_t{1} << i) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels_, bound, below);
  }
  out += fmt::format("{}_sum{{{}}} {}\n", name, labels_, steps.rows);
  return out + fmt::format("{}_count{{{}}} {}\n", name, labels_, below);
}

void Metrics::count_response(const std::string& path, int status) {
  std::lock_guard lock(mutex_);
  ++responses_[{path, status}];
}

namespace {

std::string device_seconds(const std::string& labels, const Metrics::Gauges& gauges) {
  std::string out;
  auto counter = [&](const std::string& name, const char* help, double v) {
    out += header(name, "counter", help) + fmt::format("{}{{{}}} {:.6f}\n", name, labels, v);
  };
  counter("stretto:device_busy_seconds_total", "Time in which the device worked at steps.",
          gauges.device_works);
  counter("stretto:device_wait_seconds_total",
          "Time between works in which it waited for the host, though requests ran.",
          gauges.device_waits);
  return out;
}

}  // namespace

std::string Metrics::text(const Gauges& gauges) const {
  std::lock_guard lock(mutex_);
  std::string out;
  auto value = [&](const std::string& name, const char* type, const char* help, std::uint64_t v) {
    out += header(name, type, help) + fmt::format("{}{{{}}} {}\n", name, labels_, v);
  };
  auto histogram = [&](const std::string& name, const char* help, const Histogram& h) {
    out += header(name, "histogram", help) + h.text(name, labels_);
  };
  value("vllm:num_requests_running", "gauge", "Requests that the model works on.", gauges.running);
  value("vllm:num_requests_waiting", "gauge", "Requests that wait for it.", gauges.waiting);
  // Those that wait do so for room; none is put off for another reason.
  out += header("vllm:num_requests_waiting_by_reason", "gauge", "The same, by what they wait for.");
  for (const auto& [reason, count] :
       {std::pair("capacity", gauges.waiting), std::pair("deferred", std::size_t{0})}) {
    out += fmt::format("vllm:num_requests_waiting_by_reason{{{},reason=\"{}\"}} {}\n", labels_,
                       reason, count);
  }
  // The second is the name before vLLM 0.13, which dashboards still have.
  for (const char* name : {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}) {
    out += header(name, "gauge", "Part of the cache that is used, of 1.") +
           fmt::format("{}{{{}}} {}\n", name, labels_, gauges.cache_use);
  }
  out += header("vllm:cache_config_info", "gauge", "How the cache is made: always 1.") +
         fmt::format(
             "vllm:cache_config_info{{{},block_size=\"{}\",cache_dtype=\"{}\","
             "num_gpu_blocks=\"{}\"}} 1\n",
             labels_, gauges.page_tokens, gauges.cache_dtype, gauges.cache_pages);
  auto counter = [&](const char* name, const char* help, std::int64_t v) {
    value(name, "counter", help, static_cast<std::uint64_t>(v));
  };
  counter("vllm:num_preemptions_total", "Requests that gave their pages back for a while.",
          gauges.preemptions);
  counter("stretto:restarts_total", "Times that the ranks were started again after a fault.",
          gauges.restarts);
  counter("vllm:prefix_cache_queries_total", "Tokens that were looked for in the cache.",
          gauges.prefix_queries);
  counter("vllm:prefix_cache_hits_total", "Tokens that were found there.", gauges.prefix_hits);
  counter("vllm:prompt_tokens_cached_total", "The same.", gauges.prefix_hits);
  out += header("stretto:tokens_chosen_total", "counter",
                "Tokens by where they were chosen from their logits.");
  for (const auto& [where, count] :
       {std::pair("device", gauges.chosen_by_device), std::pair("host", gauges.chosen_by_host)}) {
    out += fmt::format("stretto:tokens_chosen_total{{{},by=\"{}\"}} {}\n", labels_, where, count);
  }
  out += device_seconds(labels_, gauges);
  value("vllm:prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens_);
  value("vllm:generation_tokens_total", "counter", "Tokens that were generated.", tokens_);
  value("vllm:admission_rejections_total", "counter", "Requests that found the queue full.",
        refused_);
  out += header("vllm:request_success_total", "counter", "Answers by what ended them.");
  for (const auto& [reason, count] : ended_) {
    out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels_,
                       reason, count);
  }
  histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", first_token_);
  for (const char* name : {"vllm:inter_token_latency_seconds",
                           "vllm:time_per_output_token_seconds"}) {  // the name before 0.13
    histogram(name, "From a token to the next.", between_tokens_);
  }
  histogram("vllm:request_time_per_output_token_seconds", "The same, the mean of an answer.",
            per_token_);
  histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", whole_);
  histogram("vllm:request_queue_time_seconds", "From arrival to its turn.", queue_);
  histogram("vllm:request_inference_time_seconds", "From its turn to the last token.", inference_);
  histogram("vllm:request_prefill_time_seconds", "From its turn to the first token.", prefill_);
  histogram("vllm:request_decode_time_seconds", "From the first token to the last.", decode_);
  histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_sizes_);
  histogram("vllm:request_prefill_kv_computed_tokens", "Those that were not in the cache.",
            computed_prompts_);
  histogram("vllm:request_generation_tokens", "Tokens of an answer.", answer_sizes_);
  histogram("vllm:request_max_num_generation_tokens", "Of a request's longest answer.",
            longest_answers_);
  histogram("vllm:request_params_n", "Answers that a request asks for.", numbers_of_answers_);
  histogram("vllm:request_params_max_tokens", "Tokens that it asks for at most.", limits_);
  histogram("vllm:request_num_preemptions", "Times that an answer was cut short.", preemptions_);
  out += text_of(gauges.steps);
  value("stretto:connections", "gauge", "Open connections.", gauges.connections);
  out += header("stretto:http_responses_total", "counter", "HTTP responses.");
  for (const auto& [key, count] : responses_) {
    out += fmt::format("stretto:http_responses_total{{path=\"{}\",status=\"{}\"}} {}\n",
                       escaped(key.first), key.second, count);
  }
  return out;
}

}  // namespace stretto
