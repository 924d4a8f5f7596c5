// generate() and score() where requests run together (generate.h).
#include <algorithm>
#include <memory>
#include <utility>

#include "stretto/base/errors.h"
#include "stretto/engine/answer.h"
#include "stretto/engine/generate.h"
#include "stretto/engine/run_requests.h"

namespace stretto {
namespace {

using Request = std::shared_ptr<ServedRequest>;

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

bool Engine::takes_many() const {
  return options_.data_groups == 1 && !options_.ulysses;
}

// Of GPUs one thread runs all of its process, as the first of them.
int Engine::index_of(const Rank* rank) const {
  return rank != nullptr ? rank->index() : gpus_->local_ranks().front();
}

BatchOptions Engine::batch_options() const {
  return {.dtype = options_.dtype,
          .cache = {.fp8 = options_.fp8_cache},
          .plan_for = options_.device,
          .expert_groups = options_.expert_groups};
}

std::vector<GenerateResult> Engine::generate_together(const std::vector<GenerateRequest>& requests,
                                                      std::int64_t capacity, const OnText& on_text,
                                                      const OnLogits& on_logits) {
  if (requests.empty()) return {};
  std::vector<RunLength> lengths;
  for (const GenerateRequest& r : requests) {
    lengths.push_back({std::ssize(r.prompt), std::ssize(r.prompt) + r.max_tokens});
  }
  RunPlan plan = plan_run(lengths, capacity, batch_options(),
                          [this](const BatchOptions& o) { return size_cache(o, 0); });
  std::vector<GenerateResult> results;
  run_batches(plan.model, [&](Rank* rank, BatchModel& model) {
    std::vector<std::unique_ptr<Answer>> answers;
    std::vector<Request> asked_for;
    Failure failure;
    int own = index_of(rank);
    bool reports = own == 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      answers.push_back(
          std::make_unique<Answer>(files_, requests[i], reports ? on_text : OnText()));
      asked_for.push_back(asked(requests[i], *answers.back(), failure));
      if (!on_logits) continue;
      Answer* answer = answers.back().get();
      asked_for.back()->on_logits = [&on_logits, answer, own, i](std::span<const float> logits) {
        on_logits(own, i, answer->num_tokens(), logits);
      };
    }
    run_requests(model, plan.limits, asked_for);
    failure.raise();
    if (!reports) return;
    for (auto& answer : answers) results.push_back(answer->finish());
  });
  return results;
}

Engine::Score Engine::score_together(const std::vector<std::vector<int>>& documents,
                                     std::int64_t capacity,
                                     const std::function<void(std::size_t)>& progress) {
  std::vector<RunLength> lengths;
  for (const auto& d : documents) {
    if (d.size() >= 2) lengths.push_back({std::ssize(d), std::ssize(d)});
  }
  Score score;
  if (lengths.empty()) return score;
  RunPlan plan = plan_run(lengths, capacity, batch_options(),
                          [this](const BatchOptions& o) { return size_cache(o, 0); });
  run_batches(plan.model, [&](Rank* rank, BatchModel& model) {
    std::vector<std::vector<double>> told(documents.size());  // logprobs
    std::vector<Request> asked_for;
    Failure failure;
    std::size_t done = documents.size() - lengths.size();
    bool reports = index_of(rank) == 0;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      if (documents[i].size() < 2) continue;
      auto request = std::make_shared<ServedRequest>();
      // The last token predicts none that counts.
      request->prompt = documents[i];
      request->max_tokens = 1;
      request->num_prompt_logprobs = 0;
      request->on_prompt = [&own = told[i]](const TokenLogprob& t) { own.push_back(t.logprob); };
      request->on_token = [](const TokenLogprob&) { return false; };
      request->on_end = [&, reports](ServedRequest::End end, const std::string& why) {
        failure.take(end, why);
        if (reports && progress) progress(++done);
      };
      asked_for.push_back(std::move(request));
    }
    run_requests(model, plan.limits, asked_for);
    failure.raise();
    if (!reports) return;
    double nll = 0;  // in the order of the documents
    for (const auto& of_document : told) {
      for (double logprob : of_document) nll -= logprob;
      score.tokens += std::ssize(of_document);
    }
    score.nll_per_token = score.tokens > 0 ? nll / static_cast<double>(score.tokens) : 0;
  });
  return score;
}

}  // namespace stretto
