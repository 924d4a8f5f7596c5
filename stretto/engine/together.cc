// generate() and score() of generate.h: requests that run together.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/base/printable.h"
#include "stretto/engine/answer.h"
#include "stretto/engine/generate.h"
#include "stretto/engine/run_requests.h"

namespace stretto {
namespace {

using Request = std::shared_ptr<ServedRequest>;

constexpr std::int64_t kLeastCapacity = 1024;  // tokens

// Room for `longest` tokens. A model may promise far more positions than memory holds; powers of
// two keep the number of different programs, each proved once, small.
std::int64_t cache_capacity(std::int64_t longest, std::int64_t context) {
  std::int64_t capacity = kLeastCapacity;
  while (capacity < longest) capacity *= 2;
  return std::min(capacity, context);
}

void check(const GenerateRequest& r, std::int64_t capacity) {
  r.sampling.validate();
  if (r.prompt.empty()) throw UserError("the prompt is empty");
  if (r.max_tokens < 1) {
    throw UserError(fmt::format("max-tokens is {}, need at least 1", r.max_tokens));
  }
  auto prompt = static_cast<std::int64_t>(r.prompt.size());
  if (prompt + 1 > capacity) {
    throw UserError(
        fmt::format("the prompt has {} tokens, the context holds {}", prompt, capacity));
  }
}

void check_tokens(std::span<const int> ids, const ModelFiles& files) {
  for (int id : ids) {
    if (id >= 0 && id < files.config.vocab_size) continue;
    const std::string token = files.tokenizer.id_to_token(id).value_or("");
    throw UserError(fmt::format("token {} ('{}') is outside the vocabulary of {} ({}: vocab_size)",
                                id, printable(token), files.config.vocab_size, files.config.where));
  }
}

// The text as bytes: one that was cut off need not be UTF-8.
Json to_json(const GenerateResult& r) {
  return {{"token_ids", r.token_ids},
          {"text", std::vector<std::uint8_t>(r.text.begin(), r.text.end())},
          {"finish_reason", r.finish_reason},
          {"prefill_seconds", r.prefill_seconds},
          {"decode_seconds", r.decode_seconds}};
}

GenerateResult result_of(const Json& json) {
  auto text = json.at("text").get<std::vector<std::uint8_t>>();
  return {.token_ids = json.at("token_ids").get<std::vector<int>>(),
          .text = {text.begin(), text.end()},
          .finish_reason = json.at("finish_reason").get<std::string>(),
          .prefill_seconds = json.at("prefill_seconds").get<double>(),
          .decode_seconds = json.at("decode_seconds").get<double>()};
}

// What a request failed of; the first one's counts, on every rank the same.
struct Failure {
  std::string what;
  void take(ServedRequest::End end, const std::string& why) {
    if (end == ServedRequest::End::kFailed && what.empty()) what = why;
  }
  void raise() const {
    if (!what.empty()) throw UserError(what);
  }
};

Request asked(const GenerateRequest& r, Answer& answer, Failure& failure) {
  auto out = std::make_shared<ServedRequest>();
  out->prompt = r.prompt;
  out->max_tokens = r.max_tokens;
  out->sampling = r.sampling;
  out->on_start = [&answer] { answer.begin(); };
  out->on_token = [&answer](const TokenLogprob& told) {
    if (answer.num_tokens() == 0) answer.prompt_done();
    return answer.push(told.token);
  };
  out->on_end = [&failure](ServedRequest::End end, const std::string& why) {
    failure.take(end, why);
  };
  return out;
}

}  // namespace

BatchOptions Engine::batch_options() const {
  return {.dtype = options_.dtype,
          .cache = {.fp8 = options_.fp8_cache},
          .plan_for = options_.device,
          .expert_groups = options_.expert_groups,
          .data_groups = options_.data_groups,
          .ulysses = options_.ulysses,
          .fused_experts = options_.fused_experts};
}

std::vector<GenerateResult> Engine::generate(const std::vector<GenerateRequest>& requests,
                                             const OnText& on_text, const OnLogits& on_logits) {
  std::int64_t context = files_.config.max_positions, longest = 1;
  if (options_.max_tokens > 0) context = std::min(context, options_.max_tokens);
  std::vector<GenerateRequest> checked = requests;
  std::vector<RunLength> lengths;
  for (GenerateRequest& r : checked) {
    check(r, context);
    check_tokens(r.prompt, files_);
    const std::int64_t prompt = std::ssize(r.prompt);
    r.max_tokens = std::min(r.max_tokens, context - prompt + 1);
    longest = std::max(longest, prompt + r.max_tokens - 1);
    lengths.push_back({prompt, prompt + r.max_tokens});
  }
  if (checked.empty()) return {};
  RunSettings plan =
      plan_run(lengths, cache_capacity(longest, context), batch_options(), options_.world_size,
               [this](const BatchOptions& o) { return size_cache(o, 0); });
  std::vector<GenerateResult> results;
  const auto groups = static_cast<std::size_t>(options_.data_groups);
  run_batches(plan.model, [&](Rank* rank, BatchModel& model) {
    std::vector<std::unique_ptr<Answer>> answers;
    std::vector<Request> asked_for;
    Failure failure;
    int own = index_of(rank);
    bool reports = own == 0;
    for (auto i = static_cast<std::size_t>(group_of(own)); i < checked.size(); i += groups) {
      answers.push_back(std::make_unique<Answer>(files_, checked[i], reports ? on_text : OnText()));
      asked_for.push_back(asked(checked[i], *answers.back(), failure));
      if (!on_logits) continue;
      Answer* answer = answers.back().get();
      asked_for.back()->on_logits = [&on_logits, answer, own, i](std::span<const float> logits) {
        on_logits(own, i, answer->num_tokens(), logits);
      };
    }
    run_requests(model, plan.limits, asked_for);
    failure.raise();
    Json mine = Json::array();
    for (auto& answer : answers) mine.push_back(to_json(answer->finish()));
    const std::vector<Json> of_groups = gather_groups(rank, mine);
    for (std::size_t i = 0; reports && i < checked.size(); ++i) {
      results.push_back(result_of(of_groups[i % groups].at(i / groups)));
    }
  });
  return results;
}

Engine::Score Engine::score(const std::vector<std::vector<int>>& documents,
                            const std::function<void(std::size_t)>& progress) {
  std::int64_t longest = 1;
  std::vector<std::size_t> scored;  // documents
  std::vector<RunLength> lengths;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    check_tokens(documents[i], files_);
    const std::int64_t size = std::ssize(documents[i]);
    longest = std::max(longest, size);
    if (size < 2) continue;
    scored.push_back(i);
    lengths.push_back({size, size});
  }
  const std::int64_t context = files_.config.max_positions;
  if (longest > context) {
    throw UserError(
        fmt::format("a document has {} tokens, the context holds {}", longest, context));
  }
  Score score;
  if (scored.empty()) return score;
  RunSettings plan =
      plan_run(lengths, cache_capacity(longest, context), batch_options(), options_.world_size,
               [this](const BatchOptions& o) { return size_cache(o, 0); });
  const auto groups = static_cast<std::size_t>(options_.data_groups);
  run_batches(plan.model, [&](Rank* rank, BatchModel& model) {
    std::vector<std::vector<double>> told(scored.size());  // logprobs
    std::vector<Request> asked_for;
    Failure failure;
    const int own = index_of(rank);
    const bool reports = own == 0;
    std::size_t done = 0;
    for (auto i = static_cast<std::size_t>(group_of(own)); i < scored.size(); i += groups) {
      auto request = std::make_shared<ServedRequest>();
      // The last token predicts none that counts.
      request->prompt = documents[scored[i]];
      request->max_tokens = 1;
      request->num_prompt_logprobs = 0;
      request->on_prompt = [&own = told[i]](const TokenLogprob& t) { own.push_back(t.logprob); };
      request->on_token = [](const TokenLogprob&) { return false; };
      request->on_end = [&, reports](ServedRequest::End end, const std::string& why) {
        failure.take(end, why);
        // Other groups are about as far.
        done = std::min(done + groups, scored.size());
        if (reports && progress) progress(documents.size() - scored.size() + done);
      };
      asked_for.push_back(std::move(request));
    }
    run_requests(model, plan.limits, asked_for);
    failure.raise();
    const std::vector<Json> of_groups = gather_groups(rank, told);
    if (!reports) return;
    double nll = 0;  // in the order of the documents
    for (std::size_t i = 0; i < scored.size(); ++i) {
      const auto of_document = of_groups[i % groups].at(i).get<std::vector<double>>();
      for (double logprob : of_document) nll -= logprob;
      score.tokens += std::ssize(of_document);
    }
    score.nll_per_token = score.tokens > 0 ? nll / static_cast<double>(score.tokens) : 0;
  });
  return score;
}

}  // namespace stretto
