// `stretto load`: requests to any OpenAI server, and how long they took.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "apps/api_keys.h"
#include "apps/commands.h"
#include "apps/load_client.h"
#include "apps/load_trace.h"
#include "apps/number_checks.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/say.h"

namespace stretto {
namespace {

using Clock = std::chrono::steady_clock;

struct LoadOptions {
  std::string url, trace, api_key, api_key_file;
  std::int64_t requests = 0, input_tokens = 0, output_tokens = 0;
  double rate = 0, burstiness = 1, speed = 1;
  int concurrency = 0;
  std::uint64_t seed = 0;
  double slo_ttft_ms = 0, slo_tpot_ms = 0;
  double timeout_s = LoadRequest().timeout_s;
  bool json = false;
};

// Token ids that vocabularies have and that name no special token.
constexpr int kFirstToken = 32, kNumTokens = 200;

// What is sent, and when; without times, in a closed loop. Traces have millions of requests, so
// their prompts are drawn when they are sent.
struct Load {
  struct Lengths {
    std::int64_t input = 0, output = 0;  // tokens
  };
  std::string model;
  std::uint64_t seed = 0;
  double timeout_s = 0;  // of each request without news
  std::vector<Lengths> requests;
  std::vector<double> times;  // seconds

  LoadRequest request(std::size_t number) const {
    const Lengths& lengths = requests[number];
    std::mt19937_64 random(seed * 0x9e3779b97f4a7c15 + number);
    LoadRequest r{
        .model = model, .prompt = {}, .max_tokens = lengths.output, .timeout_s = timeout_s};
    for (std::int64_t t = 0; t < lengths.input; ++t) {
      r.prompt.push_back(kFirstToken + static_cast<int>(random() % kNumTokens));
    }
    return r;
  }
};

Load load_of(const LoadOptions& options, const std::string& model) {
  Load load{.model = model,
            .seed = options.seed,
            .timeout_s = options.timeout_s,
            .requests = {},
            .times = {}};
  if (!options.trace.empty()) {
    for (const Arrival& a : read_trace(options.trace, options.requests)) {
      load.requests.push_back({a.input_tokens, a.output_tokens});
      load.times.push_back(a.at_s / options.speed);
    }
  } else {
    for (std::int64_t i = 0; i < options.requests; ++i) {
      load.requests.push_back({options.input_tokens, options.output_tokens});
    }
    if (options.rate > 0) {
      load.times =
          gamma_arrivals(options.requests, options.rate, options.burstiness, options.seed + 1);
    }
  }
  if (options.concurrency > 0) load.times.clear();
  constexpr double kLongest = 1e9;  // seconds, some 30 years; clocks count nanoseconds in 64 bits
  if (!load.times.empty() && !(load.times.back() <= kLongest)) {
    throw UserError(fmt::format("{}: the last request would come after {:.3g} s, need {:g} at most",
                                options.trace.empty() ? "--rate" : "--speed", load.times.back(),
                                kLongest));
  }
  return load;
}

// Never throws: it is all that a thread does.
LoadAnswer answer_to(const ServerAddress& server, const Load& load, std::size_t number) {
  try {
    return ask(server, load.request(number));
  } catch (const std::exception& e) {  // no memory for its prompt
    LoadAnswer answer;
    answer.failure = e.what();
    return answer;
  }
}

// So many at once, the next one when one has ended.
std::vector<LoadAnswer> closed_loop(const ServerAddress& server, const Load& load,
                                    int concurrency) {
  std::vector<LoadAnswer> answers(load.requests.size());
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> clients;
  for (int i = 0; i < concurrency; ++i) {
    clients.emplace_back([&] {
      for (std::size_t r = next++; r < answers.size(); r = next++) {
        answers[r] = answer_to(server, load, r);
      }
    });
  }
  clients.clear();
  return answers;
}

// A request's thread, until it has been answered: one that has ended still has its stack.
struct OpenClient {
  std::atomic<bool> has_ended{false};
  std::jthread thread;
};

// Each at its time, whatever the server does.
std::vector<LoadAnswer> open_loop(const ServerAddress& server, const Load& load) {
  std::vector<LoadAnswer> answers(load.requests.size());
  std::list<OpenClient> clients;
  auto begin = Clock::now();
  for (std::size_t r = 0; r < load.requests.size(); ++r) {
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(
                                              std::chrono::duration<double>(load.times[r])));
    clients.remove_if([](const OpenClient& c) { return c.has_ended.load(); });
    OpenClient& client = clients.emplace_back();
    try {
      client.thread = std::jthread([&, r] {
        answers[r] = answer_to(server, load, r);
        client.has_ended = true;
      });
    } catch (const std::system_error& e) {
      answers[r].failure = fmt::format("{} are under way, and no thread for one more: {}",
                                       clients.size() - 1, e.what());
      client.has_ended = true;
    }
  }
  clients.clear();
  return answers;
}

// The least value that is at least as large as so many of all.
double quantile(const std::vector<double>& sorted, double part) {
  if (sorted.empty()) return 0;
  auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

Json quantiles(const std::vector<double>& sorted) {
  return {{"p50", quantile(sorted, 0.5)},
          {"p90", quantile(sorted, 0.9)},
          {"p99", quantile(sorted, 0.99)}};
}

// How many values lie in each of the equal parts between the least and the largest.
std::string sparkline(const std::vector<double>& sorted) {
  constexpr std::size_t kParts = 20;
  constexpr std::array kBars = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::array<std::size_t, kParts> counts{};
  for (double v : sorted) {
    double width = sorted.back() - sorted.front();
    double place = width > 0 ? (v - sorted.front()) / width * kParts : 0;
    ++counts[std::min(static_cast<std::size_t>(place), kParts - 1)];
  }
  std::size_t most = std::max<std::size_t>(*std::max_element(counts.begin(), counts.end()), 1);
  std::string out;
  for (std::size_t c : counts) out += kBars[(c * (kBars.size() - 1) + most - 1) / most];
  return out;
}

struct Report {
  std::vector<double> ttft, tpot, e2e;  // ms, ascending
  std::int64_t failed = 0, tokens = 0, good = 0;
  double seconds = 0;
};

Report report_of(const LoadOptions& options, const std::vector<LoadAnswer>& answers,
                 double seconds) {
  Report r{.seconds = seconds};
  for (const LoadAnswer& a : answers) {
    if (!a.failure.empty()) {
      if (r.failed++ == 0) say("stretto: a request failed: {}\n", a.failure);
      continue;
    }
    double ttft = a.first_token_s * 1e3, tpot = 0;
    if (a.tokens > 1) {
      tpot = (a.whole_s - a.first_token_s) * 1e3 / static_cast<double>(a.tokens - 1);
      r.tpot.push_back(tpot);
    }
    r.ttft.push_back(ttft);
    r.e2e.push_back(a.whole_s * 1e3);
    r.tokens += a.tokens;
    bool good = (options.slo_ttft_ms == 0 || ttft <= options.slo_ttft_ms) &&
                (options.slo_tpot_ms == 0 || tpot <= options.slo_tpot_ms);
    r.good += good ? 1 : 0;
  }
  for (auto* values : {&r.ttft, &r.tpot, &r.e2e}) std::sort(values->begin(), values->end());
  return r;
}

void print(const LoadOptions& options, const Report& r) {
  std::int64_t requests = r.failed + std::ssize(r.e2e);
  auto completed = static_cast<std::int64_t>(r.e2e.size());
  double per_second = static_cast<double>(r.tokens) / r.seconds;
  double goodput = static_cast<double>(r.good) / r.seconds;
  if (options.json) {
    fmt::print("{}\n", to_line({{"requests", requests},
                                {"completed", completed},
                                {"failed", r.failed},
                                {"output_tokens_per_second", per_second},
                                {"goodput", goodput},
                                {"ttft_ms", quantiles(r.ttft)},
                                {"tpot_ms", quantiles(r.tpot)},
                                {"e2e_ms", quantiles(r.e2e)}}));
    return;
  }
  fmt::print("{} requests, {} completed, {} failed in {:.1f} s\n", requests, completed, r.failed,
             r.seconds);
  fmt::print("{:.1f} output tokens a second, {:.2f} good requests a second\n", per_second, goodput);
  fmt::print("{:<6}{:>10}{:>10}{:>10}  from the least to the largest\n", "ms", "p50", "p90", "p99");
  auto row = [](const char* name, const std::vector<double>& v) {
    fmt::print("{:<6}{:>10.1f}{:>10.1f}{:>10.1f}  {}\n", name, quantile(v, 0.5), quantile(v, 0.9),
               quantile(v, 0.99), sparkline(v));
  };
  row("ttft", r.ttft);
  row("tpot", r.tpot);
  row("e2e", r.e2e);
}

void check(const LoadOptions& options) {
  if (options.rate > 0 && options.concurrency > 0) {
    throw UserError("need either --rate or --concurrency, not both");
  }
  if (!options.trace.empty()) return;
  if (options.rate == 0 && options.concurrency == 0) {
    throw UserError("need either --rate or --concurrency, or --trace");
  }
  for (auto [value, flag] : {std::pair{options.requests, "--requests"},
                             {options.input_tokens, "--input-tokens"},
                             {options.output_tokens, "--output-tokens"}}) {
    if (value == 0) throw UserError(fmt::format("{} is missing: there is no --trace", flag));
  }
}

// As a header takes it.
std::string key_of(const LoadOptions& options) {
  const bool from_file = !options.api_key_file.empty();
  std::string key = from_file ? read_keys(options.api_key_file).front() : options.api_key;
  const bool is_plain =
      std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 127; });
  if (is_plain) return key;
  throw UserError(fmt::format("{}: the key has spaces or other characters that no header takes",
                              from_file ? "--api-key-file" : "--api-key"));
}

void load(const LoadOptions& options) {
  check(options);
  ServerAddress server = server_address(options.url);
  server.api_key = key_of(options);
  Load load = load_of(options, first_model(server));
  auto begin = Clock::now();
  std::vector<LoadAnswer> answers =
      load.times.empty() ? closed_loop(server, load, options.concurrency) : open_loop(server, load);
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  Report report = report_of(options, answers, seconds);
  print(options, report);
  if (report.failed > 0) throw CommandFailed{};
}

}  // namespace

void add_load_command(CLI::App& app) {
  auto options = std::make_shared<LoadOptions>();
  CLI::App* command = app.add_subcommand(
      "load", "Send completion requests to an OpenAI server and tell how long they took");
  command->add_option("--url", options->url, "http://HOST:PORT of the server")->required();
  command->add_option("--api-key", options->api_key, "shown to the server, which may want one")
      ->envname("OPENAI_API_KEY");
  command->add_option("--api-key-file", options->api_key_file,
                      "a file with such a key in its first line, in place of it");
  CLI::Option* trace = command->add_option(
      "--trace", options->trace,
      "CSV with the columns Timestamp, Request tokens and Response tokens, as BurstGPT's: requests "
      "of these lengths at these times, or with --concurrency one after the other");
  command->add_option("--speed", options->speed, "the trace's time runs so many times as fast")
      ->check(positive())
      ->needs(trace)
      ->capture_default_str();
  command->add_option("--requests", options->requests, "how many; of a trace the first ones")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  CLI::Option* rate =
      command->add_option("--rate", options->rate, "so many a second, at random times (Poisson)")
          ->check(positive())
          ->excludes(trace);
  command
      ->add_option("--burstiness", options->burstiness,
                   "shape of the Gamma distribution of the gaps: below 1 requests come in bursts")
      ->check(positive())
      ->needs(rate)
      ->capture_default_str();
  command
      ->add_option("--concurrency", options->concurrency,
                   "so many at once, the next one when one has ended")
      ->check(CLI::Range(1, 4096));
  command->add_option("--input-tokens", options->input_tokens, "of each prompt, drawn at random")
      ->excludes(trace)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  command->add_option("--output-tokens", options->output_tokens, "of each answer")
      ->excludes(trace)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  command
      ->add_option("--slo-ttft-ms", options->slo_ttft_ms,
                   "a request is good if its first token came in this time")
      ->check(positive());
  command
      ->add_option("--slo-tpot-ms", options->slo_tpot_ms,
                   "... and the others took this long each, at most")
      ->check(positive());
  command
      ->add_option("--timeout", options->timeout_s,
                   "seconds without a token or the end, after which a request has failed")
      ->check(between(0.001, 86400))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of prompts and times")->capture_default_str();
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options] { load(*options); });
}

}  // namespace stretto
