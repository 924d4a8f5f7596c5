#include "stretto/engine/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/engine/answer.h"
#include "stretto/engine/gpu_memory.h"
#include "stretto/engine/host_memory.h"
#include "stretto/engine/token_loop.h"
#include "stretto/model/gpu/gpu_batch.h"
#include "stretto/model/gpu/gpu_model.h"
#include "stretto/model/transformer/batch_plan.h"
#include "stretto/model/transformer/weights.h"

namespace stretto {
namespace {

constexpr std::int64_t kLeastCapacity = 1024;  // tokens

// One request on one rank, alone, from the prompt to the token that ends it.
class Session final : public TokenVisitor {
 public:
  using OnStep = std::function<void(std::int64_t, std::span<const float>)>;

  Session(Transformer& model, const ModelFiles& files, const GenerateRequest& request,
          const OnText& on_text)
      : model_(model), request_(request), answer_(files, request, on_text) {}

  GenerateResult run(const OnStep& on_logits) {
    on_logits_ = on_logits;
    answer_.begin();
    run_tokens(model_, request_.prompt, request_.sampling, {.max_tokens = request_.max_tokens},
               *this);
    return answer_.finish();
  }

  bool needs_logits() const override { return static_cast<bool>(on_logits_); }
  void on_prompt_done() override { answer_.prompt_done(); }
  bool on_token(int token, std::span<const float> logits) override {
    if (on_logits_) on_logits_(answer_.num_tokens(), logits);
    return answer_.push(token);
  }

 private:
  Transformer& model_;
  const GenerateRequest& request_;
  Answer answer_;
  OnStep on_logits_;
};

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

// The least of what the ranks hand in, on all of them. Collective.
std::int64_t least_of(Rank& rank, std::int64_t value) {
  SymmetricBuffer values = rank.allocate("values", DType::kI64, 1);
  *values.on<std::int64_t>(rank.index()) = value;
  rank.barrier();
  for (int r = 0; r < rank.size(); ++r) value = std::min(value, *values.on<std::int64_t>(r));
  rank.barrier();
  rank.release(values);
  return value;
}

// What every rank hands in, at rank 0 and by rank; elsewhere empty. Collective.
std::vector<Json> gather(Rank& rank, const Json& value) {
  std::vector<std::uint8_t> bytes = Json::to_cbor(value);
  SymmetricBuffer sizes = rank.allocate("sizes of results", DType::kI64, 1);
  *sizes.on<std::int64_t>(rank.index()) = static_cast<std::int64_t>(bytes.size());
  rank.barrier();
  std::int64_t most = 0;
  for (int r = 0; r < rank.size(); ++r) most = std::max(most, *sizes.on<std::int64_t>(r));
  SymmetricBuffer results = rank.allocate("results", DType::kU8, static_cast<std::size_t>(most));
  std::copy(bytes.begin(), bytes.end(), results.on<std::uint8_t>(rank.index()));
  rank.barrier();
  std::vector<Json> all;
  for (int r = 0; rank.index() == 0 && r < rank.size(); ++r) {
    const auto* begin = results.on<std::uint8_t>(r);
    all.push_back(Json::from_cbor(begin, begin + *sizes.on<std::int64_t>(r)));
  }
  rank.barrier();
  rank.release(results);
  rank.release(sizes);
  return all;
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

void check_tokens(std::span<const int> ids, const ModelFiles& files) {
  for (int id : ids) {
    if (id >= 0 && id < files.config.vocab_size) continue;
    const std::string token = files.tokenizer.id_to_token(id).value_or("");
    throw UserError(fmt::format("token {} ('{}') is outside the vocabulary of {} ({}: vocab_size)",
                                id, printable(token), files.config.vocab_size, files.config.where));
  }
}

}  // namespace

Engine::Engine(const ModelFiles& files, const EngineOptions& options)
    : files_(files), options_(options), world_(options.world) {
  bool on_cpu = options.device == Target::kCpu;
  if (options.record && options.data_groups > 1) {
    throw UserError("timelines are of one data-parallel group");
  }
  if (options.fp8_cache && (options.data_groups > 1 || options.ulysses)) {
    throw UserError("an fp8 cache is one of pages, which data groups and Ulysses have not");
  }
  if (on_cpu && world_ == nullptr) {
    world_ =
        std::make_shared<World>(WorldOptions{.size = options.world_size, .record = options.record});
  }
  if (world_ != nullptr && world_->size() != options.world_size) {
    throw UserError(fmt::format("the engine is for {} ranks, its world has {}", options.world_size,
                                world_->size()));
  }
  if (on_cpu) return;
  if (options.record) throw UserError("timelines are recorded on CPU ranks only");
  if (options.data_groups > 1 && world_ == nullptr) {
    throw UserError("data-parallel groups on GPUs need a process per GPU");
  }
  if (world_ != nullptr) {
    gpus_ = std::make_unique<GpuWorld>(world_->local_rank(), GpuProcessOptions{});
    if (options.data_groups > 1) join_group();
  } else {
    gpus_ = std::make_unique<GpuWorld>(GpuWorldOptions{.size = options.world_size});
  }
}

void Engine::join_group() {
  Rank& rank = world_->local_rank();
  ModelShape shape{.world_size = options_.world_size / options_.data_groups,
                   .data_groups = options_.data_groups};
  group_rank_ = rank.split(ranks_of_group(shape, rank.index()));
  int device = gpus_->device(rank.index()).properties().ordinal;
  group_gpus_ = std::make_unique<GpuWorld>(*group_rank_, GpuProcessOptions{.device = device});
}

bool Engine::reports() const { return world_ == nullptr || world_->local_ranks().front() == 0; }

void Engine::with_model(std::int64_t capacity, const UseModel& use) {
  TransformerOptions model{.dtype = options_.dtype,
                           .max_tokens = capacity,
                           .plan_for = options_.device,
                           .expert_groups = options_.expert_groups,
                           .data_groups = options_.data_groups,
                           .ulysses = options_.ulysses};
  ModelShape shape = model_shape(files_.config, options_.world_size, model);
  shape.weight_dtype = weight_dtype(files_.checkpoint, options_.dtype);
  auto seat_of = [&](int rank, Rank* host) {
    return Seat{.rank = rank,
                .group = rank / shape.world_size,
                .leads = rank % shape.world_size == 0,
                .host = host};
  };
  if (gpus_) {
    GpuModelOptions options;
    Rank* host = world_ ? &world_->local_rank() : nullptr;
    if (group_gpus_) options.data_group.emplace(GpuDataGroup{*group_gpus_, *host});
    Transformer transformer(std::make_unique<GpuModel>(*gpus_, shape, files_.checkpoint, options));
    return use(seat_of(gpus_->local_ranks().front(), host), transformer);
  }
  check_host_memory(shape);
  world_->run([&](Rank& rank) {
    Transformer transformer(rank, files_.config, files_.checkpoint, model);
    use(seat_of(rank.index(), &rank), transformer);
  });
}

void Engine::run_batches(const BatchOptions& options, const RunBatches& body) {
  if (options_.data_groups > 1) throw UserError("data groups have requests of their own");
  ModelShape shape = batch_shape(files_.config, options_.world_size, options);
  shape.weight_dtype = weight_dtype(files_.checkpoint, options_.dtype);
  if (gpus_) {
    BatchModel model(std::make_unique<GpuBatchRunner>(
                         *gpus_, shape, files_.checkpoint,
                         GpuModelOptions{.progress = options.progress}),
                     options.max_rows, options.progress);
    return body(nullptr, model);
  }
  check_host_memory(shape);
  world_->run([&](Rank& rank) {
    BatchModel model(rank, files_.config, files_.checkpoint, options);
    body(&rank, model);
  });
}

CacheSize Engine::size_cache(const BatchOptions& options, std::size_t bytes) const {
  ModelShape shape = batch_shape(files_.config, options_.world_size, options);
  shape.weight_dtype = weight_dtype(files_.checkpoint, options_.dtype);
  if (gpus_) {
    CacheSize size = size_of_gpu_cache(*gpus_, shape, options.max_rows, bytes);
    if (world_) size.num_pages = least_of(world_->local_rank(), size.num_pages);
    return size;
  }
  CacheSize size = size_of_cache(shape, bytes);
  shape.paged.num_pages = std::max<std::int64_t>(size.num_pages, 1);
  for (const PlanBuffer& b : model_buffers(shape)) size.weight_bytes += b.bytes();
  size.weight_bytes -= static_cast<std::size_t>(shape.paged.num_pages) * size.page_bytes /
                       static_cast<std::size_t>(shape.world_size);
  BatchMemory work = batch_memory(shape, options.max_rows);
  size.work_bytes = work.bytes;
  size.unshared_bytes = work.unshared;
  return size;
}

GenerateResult Engine::serve(const Seat& seat, Transformer& model, const GenerateRequest& request,
                             std::size_t index, const OnText& on_text,
                             const OnLogits& on_logits) const {
  Session::OnStep logits_seen;
  if (on_logits) {
    logits_seen = [&](std::int64_t step, std::span<const float> logits) {
      on_logits(seat.rank, index, step, logits);
    };
  }
  return Session(model, files_, request, seat.rank == 0 ? on_text : OnText()).run(logits_seen);
}

std::vector<GenerateResult> Engine::generate(const std::vector<GenerateRequest>& requests,
                                             const OnText& on_text, const OnLogits& on_logits) {
  std::int64_t context = files_.config.max_positions, longest = 1;
  if (options_.max_tokens > 0) context = std::min(context, options_.max_tokens);
  std::vector<GenerateRequest> checked = requests;
  for (GenerateRequest& r : checked) {
    check(r, context);
    check_tokens(r.prompt, files_);
    auto prompt = static_cast<std::int64_t>(r.prompt.size());
    r.max_tokens = std::min(r.max_tokens, context - prompt + 1);
    longest = std::max(longest, prompt + r.max_tokens - 1);
  }
  std::int64_t capacity = cache_capacity(longest, context);
  if (takes_many()) return generate_together(checked, capacity, on_text, on_logits);
  auto groups = static_cast<std::size_t>(options_.data_groups);
  std::vector<GenerateResult> results;
  with_model(capacity, [&](const Seat& seat, Transformer& model) {
    std::vector<GenerateResult> own;
    for (auto i = static_cast<std::size_t>(seat.group); i < checked.size(); i += groups) {
      own.push_back(serve(seat, model, checked[i], i, on_text, on_logits));
    }
    while (model.step_with_others()) continue;
    if (groups == 1) {
      if (seat.leads) results = std::move(own);
      return;
    }
    Json mine = Json::array();
    for (const GenerateResult& r : own) mine.push_back(to_json(r));
    std::vector<Json> all = gather(*seat.host, mine);
    for (std::size_t i = 0; seat.rank == 0 && i < checked.size(); ++i) {
      std::size_t leader = i % groups * (all.size() / groups);
      results.push_back(result_of(all[leader].at(i / groups)));
    }
  });
  return results;
}

Engine::Score Engine::score(const std::vector<std::vector<int>>& documents,
                            const std::function<void(std::size_t)>& progress) {
  std::int64_t longest = 1;
  for (const auto& d : documents) {
    check_tokens(d, files_);
    longest = std::max(longest, static_cast<std::int64_t>(d.size()));
  }
  if (longest > files_.config.max_positions) {
    throw UserError(fmt::format("a document has {} tokens, the context holds {}", longest,
                                files_.config.max_positions));
  }
  Score score;
  std::int64_t capacity = cache_capacity(longest, files_.config.max_positions);
  if (takes_many()) return score_together(documents, capacity, progress);
  auto groups = static_cast<std::size_t>(options_.data_groups);
  with_model(capacity, [&](const Seat& seat, Transformer& model) {
    double nll = 0;
    std::int64_t count = 0;
    for (auto i = static_cast<std::size_t>(seat.group); i < documents.size(); i += groups) {
      const std::vector<int>& tokens = documents[i];
      if (tokens.size() < 2) continue;
      model.reset();
      std::span<const int> inputs(tokens.data(), tokens.size() - 1);
      model.forward_each(inputs, [&](std::int64_t position, std::span<const float> logits) {
        if (!seat.leads) return;
        nll -= log_probability(logits, tokens[static_cast<std::size_t>(position) + 1]);
        ++count;
      });
      if (seat.rank == 0 && progress) progress(i + 1);
    }
    while (model.step_with_others()) continue;
    if (groups > 1) {
      std::vector<Json> all = gather(*seat.host, {nll, count});
      nll = 0;
      count = 0;
      for (const Json& of_rank : all) {
        nll += of_rank.at(0).get<double>();
        count += of_rank.at(1).get<std::int64_t>();
      }
    }
    if (seat.rank == 0) score = {count > 0 ? nll / static_cast<double>(count) : 0, count};
  });
  return score;
}

}  // namespace stretto
