#include "stretto/model/transformer/batch_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/executor/executor.h"
#include "stretto/model/transformer/rope_table.h"
#include "stretto/model/transformer/transformer.h"

namespace stretto {
namespace {

constexpr std::int64_t kFewRows = 16;

}  // namespace

// A plan's programs and buffers on this rank, bound once: all that knows how programs are launched.
class BatchModel::Launches {
 public:
  Launches(Rank& rank, StepPlan plan, std::map<std::string, std::byte*> model_buffers)
      : rank_(rank), plan_(std::move(plan)) {
    for (Program& program : plan_.programs) {
      instances_.push_back(std::make_unique<Instance>(rank_, prove(lower(std::move(program)))));
    }
    for (const auto& [name, data] : model_buffers) buffers_[name] = {.data = data};
    for (const PlanBuffer& b : plan_.buffers) {
      buffers_[b.name] = allocate(b);
      row_bytes_[b.name] = static_cast<std::int64_t>(b.bytes()) / b.rows;
    }
    for (const PlanLaunch& l : plan_.launches) args_.push_back(bind(l));
    head_args_ = bind(plan_.head);
  }
  ~Launches() {
    instances_.clear();
    for (auto& buffer : symmetric_) rank_.release(*buffer);
  }
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  std::int64_t sequences = 0;  // most of a step

  const StepPlan& plan() const { return plan_; }
  template <typename T>
  T* data(const std::string& name) const {
    return static_cast<T*>(buffers_.at(name).data);
  }
  std::int64_t row_bytes(const std::string& name) const { return row_bytes_.at(name); }

  void run(const StepRows& rows, const ModelShape& shape) {
    for (std::size_t i = 0; i < args_.size(); ++i) {
      const PlanLaunch& launch = plan_.launches[i];
      std::vector<std::int64_t> extents = launch_extents(launch, rows, shape);
      if (extents.front() == 0) continue;  // the same on every rank
      args_[i].extents = std::move(extents);
      for (const Behind& b : behind_[i]) {
        args_[i].tensors[b.tensor].data = b.data + rows.decodes * b.row_bytes;
      }
      instances_[launch.program]->launch(args_[i]);
    }
  }
  void run_head(std::int64_t count) {
    head_args_.extents = {count};
    instances_[plan_.head.program]->launch(head_args_);
  }

 private:
  struct Behind {  // Binding::behind_decodes
    std::size_t tensor;
    std::byte* data;
    std::int64_t row_bytes;
  };

  TensorArg allocate(const PlanBuffer& b) {
    if (!b.symmetric) {
      activations_.emplace_back(b.dtype, b.rows, b.cols);
      return {.data = activations_.back().data()};
    }
    symmetric_.push_back(std::make_unique<SymmetricBuffer>(
        rank_.allocate(b.name, b.dtype, static_cast<std::size_t>(b.rows * b.cols))));
    SymmetricBuffer& s = *symmetric_.back();
    return {.data = s.at[static_cast<std::size_t>(rank_.index())], .symmetric = &s};
  }

  LaunchArgs bind(const PlanLaunch& launch) {
    const Program& program = instances_[launch.program]->program();
    LaunchArgs args;
    args.tensors.resize(program.tensors.size());
    std::vector<Behind> behind;
    for (const Binding& b : launch.bindings) {
      int t = program.find_tensor(b.tensor);
      STRETTO_CHECK(t >= 0, program.name + " has no tensor " + b.tensor);
      args.tensors[static_cast<std::size_t>(t)] = buffers_.at(b.buffer);
      if (!b.behind_decodes) continue;
      behind.push_back(
          {static_cast<std::size_t>(t), data<std::byte>(b.buffer), row_bytes(b.buffer)});
    }
    behind_.push_back(std::move(behind));
    return args;
  }

  Rank& rank_;
  StepPlan plan_;
  std::vector<std::unique_ptr<Instance>> instances_;  // by program
  std::map<std::string, TensorArg> buffers_;
  std::map<std::string, std::int64_t> row_bytes_;  // of the plan's buffers
  std::vector<Matrix> activations_;
  std::vector<std::unique_ptr<SymmetricBuffer>> symmetric_;
  std::vector<LaunchArgs> args_;             // by launch
  std::vector<std::vector<Behind>> behind_;  // by launch
  LaunchArgs head_args_;
};

class BatchModel::State {
 public:
  State(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
        const BatchOptions& options)
      : shape_(batch_shape(config, rank.size(), options)) {
    shape_.weight_dtype = weight_dtype(checkpoint, shape_.dtype);
    weights_ = load_weights(checkpoint, config, shard_spec(shape_, rank.index()));
    rope_ = make_rope_table(config.rope, config.head_dim, shape_.max_tokens);
    std::map<std::string, std::byte*> buffers;
    for_each_weight(weights_,
                    [&](const std::string& name, const Matrix& m) { buffers[name] = m.data(); });
    for (const PlanBuffer& b : model_buffers(shape_)) {
      if (buffers.contains(b.name)) continue;
      caches_.emplace_back(b.dtype, b.rows, b.cols);
      buffers[b.name] = caches_.back().data();
    }
    for (std::int64_t rows : {std::int64_t{1}, kFewRows, options.max_rows}) {
      rows = std::min(rows, options.max_rows);
      if (!buckets_.empty() && rows == buckets_.back()->plan().bound) break;
      ModelShape shape = shape_;
      shape.paged.sequences = std::min(shape.paged.sequences, rows);
      buckets_.push_back(std::make_unique<Launches>(rank, plan_step(shape, rows), buffers));
      buckets_.back()->sequences = shape.paged.sequences;
    }
  }

  const ModelShape& shape() const { return shape_; }

  void step(std::span<const BatchPiece> pieces, const Visit& visit) {
    std::size_t count = 0;
    for (const BatchPiece& piece : pieces) count += piece.tokens.size();
    auto bucket = buckets_.begin();
    while (bucket + 1 != buckets_.end() &&
           static_cast<std::size_t>((*bucket)->plan().bound) < count) {
      ++bucket;
    }
    launches_ = bucket->get();
    StepRows rows = place(pieces);
    launches_->run(rows, shape_);
    visit_wanted(pieces, visit);
  }

 private:
  // Writes a step's inputs: rows of decodes first.
  StepRows place(std::span<const BatchPiece> pieces) {
    const StepPlan& plan = launches_->plan();
    first_row_.assign(pieces.size(), 0);
    StepRows rows;
    std::int64_t num_decodes = 0, num_prompts = 0;
    auto* starts = launches_->data<std::int32_t>(StepPlan::kPromptStarts);
    for (bool decodes : {true, false}) {
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const BatchPiece& piece = pieces[i];
        if ((piece.tokens.size() == 1) != decodes) continue;
        std::int64_t& count = decodes ? num_decodes : num_prompts;
        auto size = static_cast<std::int64_t>(piece.tokens.size());
        STRETTO_CHECK(size > 0 && rows.count + size <= plan.bound && piece.first >= 0 &&
                          piece.first + size <= shape_.max_tokens && count < launches_->sequences &&
                          piece.wanted <= size,
                      "a step outside its bounds");
        if (!decodes) starts[count] = static_cast<std::int32_t>(rows.count - rows.decodes);
        first_row_[i] = rows.count;
        place_rows(piece, rows.count);
        place_pages(piece, count, decodes);
        ++count;
        rows.count += size;
      }
      if (decodes) rows.decodes = rows.count;
    }
    for (std::int64_t s = num_prompts; s <= launches_->sequences; ++s) {
      starts[s] = static_cast<std::int32_t>(rows.count - rows.decodes);
    }
    auto* tokens = launches_->data<std::int32_t>(StepPlan::kPromptTokens);
    std::fill(tokens + num_prompts, tokens + launches_->sequences, 0);
    rows.most = rows.count;
    return rows;
  }

  void place_rows(const BatchPiece& piece, std::int64_t row) {
    const std::int64_t page = shape_.paged.page;
    auto* slots = launches_->data<std::int32_t>(StepPlan::kSlots) + row;
    auto* tokens = launches_->data<std::int32_t>(StepPlan::kTokens) + row;
    for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
      std::int64_t position = piece.first + static_cast<std::int64_t>(i);
      tokens[i] = piece.tokens[i];
      std::int64_t of = piece.pages[static_cast<std::size_t>(position / page)];
      slots[i] = static_cast<std::int32_t>(of * page + position % page);
    }
    auto bytes = launches_->row_bytes("cos");
    auto size = static_cast<std::size_t>(bytes) * piece.tokens.size();
    std::memcpy(launches_->data<std::byte>("cos") + row * bytes, rope_.cos.row(piece.first), size);
    std::memcpy(launches_->data<std::byte>("sin") + row * bytes, rope_.sin.row(piece.first), size);
  }

  void place_pages(const BatchPiece& piece, std::int64_t sequence, bool decodes) {
    const std::int64_t width = ceil_div(shape_.max_tokens, shape_.paged.page);
    std::int64_t seen = piece.first + static_cast<std::int64_t>(piece.tokens.size());
    std::int64_t used = ceil_div(seen, shape_.paged.page);
    STRETTO_CHECK(used <= static_cast<std::int64_t>(piece.pages.size()), "a piece without pages");
    auto* pages =
        launches_->data<std::int32_t>(decodes ? StepPlan::kDecodePages : StepPlan::kPromptPages) +
        sequence * width;
    std::copy_n(piece.pages.begin(), used, pages);
    launches_->data<std::int32_t>(decodes ? StepPlan::kDecodeTokens
                                          : StepPlan::kPromptTokens)[sequence] =
        static_cast<std::int32_t>(seen);
  }

  void visit_wanted(std::span<const BatchPiece> pieces, const Visit& visit) {
    const StepPlan& plan = launches_->plan();
    std::int64_t bytes = launches_->row_bytes(StepPlan::kWanted);
    const auto* from = launches_->data<std::byte>(plan.head_input);
    auto* to = launches_->data<std::byte>(StepPlan::kWanted);
    wanted_.clear();
    auto flush = [&] {
      if (wanted_.empty()) return;
      launches_->run_head(static_cast<std::int64_t>(wanted_.size()));
      auto vocab = static_cast<std::size_t>(shape_.config->vocab_size);
      const auto* logits = launches_->data<float>(StepPlan::kLogits);
      for (auto [piece, row] : wanted_) {
        if (visit) visit(piece, row, {logits, vocab});
        logits += vocab;
      }
      wanted_.clear();
    };
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      auto size = static_cast<std::int64_t>(pieces[i].tokens.size());
      for (std::int64_t row = size - pieces[i].wanted; row < size; ++row) {
        std::memcpy(to + static_cast<std::int64_t>(wanted_.size()) * bytes,
                    from + (first_row_[i] + row) * bytes, static_cast<std::size_t>(bytes));
        wanted_.emplace_back(i, row);
        if (static_cast<std::int64_t>(wanted_.size()) == plan.head_rows) flush();
      }
    }
    flush();
  }

  ModelShape shape_;
  ModelWeights weights_;
  RopeTable rope_;
  std::vector<Matrix> caches_;
  // Ascending by rows, so that few rows do not walk over the tiles of many.
  std::vector<std::unique_ptr<Launches>> buckets_;
  Launches* launches_ = nullptr;                              // of the step
  std::vector<std::int64_t> first_row_;                       // of the step, by piece
  std::vector<std::pair<std::size_t, std::int64_t>> wanted_;  // piece, row
};

ModelShape batch_shape(const ModelConfig& config, int num_ranks, const BatchOptions& options) {
  ModelShape shape = model_shape(config, num_ranks,
                                 {.dtype = options.dtype,
                                  .max_tokens = options.max_tokens,
                                  .expert_groups = options.expert_groups});
  shape.paged = options.cache;
  return shape;
}

BatchModel::BatchModel(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
                       const BatchOptions& options)
    : state_(std::make_unique<State>(rank, config, checkpoint, options)) {}

BatchModel::~BatchModel() = default;

void BatchModel::step(std::span<const BatchPiece> pieces, const Visit& visit) {
  if (!pieces.empty()) state_->step(pieces, visit);
}

const ModelShape& BatchModel::shape() const { return state_->shape(); }

}  // namespace stretto
