#include "stretto/model/transformer/cpu_model.h"

#include <cstring>

#include "stretto/base/errors.h"
#include "stretto/compiler.h"
#include "stretto/launch/executable.h"
#include "stretto/model/transformer/transformer.h"

namespace stretto {
namespace {

class CpuForwardStep : public ForwardStep {
 public:
  CpuForwardStep(const CpuModel::Worlds& worlds, const ModelShape& shape,
                 const std::map<std::string, std::byte*>& model_buffers, std::int64_t bound)
      : worlds_(worlds), shape_(shape), plan_(plan_step(shape, bound)) {
    for (Program& program : plan_.programs) {
      bool of_group = program.world_size == shape_.world_size;
      Proved compiled = prove(lower(std::move(program)));
      executables_.push_back(load(compiled, of_group ? worlds_.group : worlds_.all));
      of_group_.push_back(of_group);
    }
    for (const auto& [name, data] : model_buffers) buffers_[name] = {.data = data};
    for (const PlanBuffer& b : plan_.buffers) buffers_[b.name] = allocate(b);
    for (const PlanLaunch& l : plan_.launches) {
      launches_.push_back(executables_[l.program]->prepare(bind(l)));
    }
    head_args_ = bind(plan_.head);
    tokens_ = buffers_.at(StepPlan::kTokens).data;
    head_input_ = static_cast<std::byte*>(buffers_.at(plan_.head_input).data);
    head_tensor_ = static_cast<std::size_t>(head().program().find_tensor("x"));
  }

  ~CpuForwardStep() override {
    launches_.clear();
    executables_.clear();
    for (Symmetric& s : symmetric_) s.world.release(*s.buffer);
  }

  void run(std::span<const int> tokens, std::int64_t past, std::int64_t most) override {
    StepRows rows{.count = static_cast<std::int64_t>(tokens.size()), .past = past, .most = most};
    STRETTO_CHECK(rows.count <= most && most >= 1 && most <= plan_.bound &&
                      past + rows.count <= shape_.max_tokens,
                  "a step outside its bucket or the cache");
    if (rows.count > 0) std::memcpy(tokens_, tokens.data(), tokens.size_bytes());
    for (std::size_t i = 0; i < launches_.size(); ++i) {
      const PlanLaunch& l = plan_.launches[i];
      if (rows.count == 0 && of_group_[l.program]) continue;
      launches_[i]->run(launch_extents(l, rows, shape_));
    }
  }

  const float* logits(std::int64_t first, std::int64_t count) override {
    STRETTO_CHECK(count >= 1 && count <= plan_.head_rows && first + count <= plan_.bound,
                  "logits outside the step");
    std::int64_t row_bytes = shape_.config->hidden_size * std::int64_t(size_bytes(shape_.dtype));
    head_args_.tensors[head_tensor_].data = head_input_ + first * row_bytes;
    const std::int64_t extents[] = {count};
    head().prepare(head_args_)->run(extents);
    return static_cast<const float*>(buffers_.at(StepPlan::kLogits).data);
  }

  std::int64_t head_rows() const override { return plan_.head_rows; }

 private:
  Executable& head() { return *executables_[plan_.head.program]; }

  TensorArg allocate(const PlanBuffer& b) {
    if (!b.symmetric) {
      activations_.emplace_back(b.dtype, b.rows, b.cols);
      return {.data = activations_.back().data()};
    }
    Rank& world = b.across_groups ? worlds_.all : worlds_.group;
    symmetric_.push_back({world, std::make_unique<SymmetricBuffer>(world.allocate(
                                     b.name, b.dtype, static_cast<std::size_t>(b.rows * b.cols)))});
    SymmetricBuffer& s = *symmetric_.back().buffer;
    return {.data = s.at[static_cast<std::size_t>(world.index())], .symmetric = &s};
  }

  Args bind(const PlanLaunch& launch) const {
    const Program& program = executables_[launch.program]->program();
    Args args;
    args.tensors.resize(program.tensors.size());
    for (const Binding& b : launch.bindings) {
      int t = program.find_tensor(b.tensor);
      STRETTO_CHECK(t >= 0, program.name + " has no tensor " + b.tensor);
      args.tensors[static_cast<std::size_t>(t)] = buffers_.at(b.buffer);
    }
    return args;
  }

  struct Symmetric {
    Rank& world;
    std::unique_ptr<SymmetricBuffer> buffer;
  };

  CpuModel::Worlds worlds_;
  const ModelShape& shape_;
  StepPlan plan_;
  std::vector<std::unique_ptr<Executable>> executables_;  // by program
  std::vector<bool> of_group_;  // by program: runs on the data group's ranks
  std::map<std::string, TensorArg> buffers_;
  std::vector<Matrix> activations_;
  std::vector<Symmetric> symmetric_;
  std::vector<std::shared_ptr<Launch>> launches_;
  Args head_args_;
  std::size_t head_tensor_ = 0;
  void* tokens_ = nullptr;
  std::byte* head_input_ = nullptr;
};

}  // namespace

CpuModel::CpuModel(Rank& rank, const ModelShape& shape, const Checkpoint& checkpoint)
    : rank_(rank), shape_(shape) {
  const ModelConfig& config = *shape_.config;
  shape_.weight_dtype = weight_dtype(checkpoint, shape_.dtype);
  if (shape_.data_groups > 1) {
    group_ = rank.split(ranks_of_group(shape_, rank.index()));
    meeting_.emplace(rank);
  }
  weights_ = load_weights(checkpoint, config, shard_spec(shape_, rank.index()));
  rope_ = make_rope_table(config.rope, config.head_dim, shape_.max_tokens);
  for_each_weight(weights_,
                  [&](const std::string& name, const Matrix& m) { buffers_[name] = m.data(); });
  buffers_["cos"] = rope_.cos.data();
  buffers_["sin"] = rope_.sin.data();
  for (const PlanBuffer& b : model_buffers(shape_)) {
    if (buffers_.contains(b.name)) continue;
    caches_.emplace_back(b.dtype, b.rows, b.cols);
    buffers_[b.name] = caches_.back().data();
  }
}

std::unique_ptr<ForwardStep> CpuModel::make_step(std::int64_t bound) {
  Worlds worlds{rank_, group_ ? *group_ : rank_};
  return std::make_unique<CpuForwardStep>(worlds, shape_, buffers_, bound);
}

// Here, so that who drives GPUs does not link the executor.
Transformer::Transformer(Rank& rank, const ModelConfig& config, const Checkpoint& checkpoint,
                         const TransformerOptions& options)
    : Transformer(std::make_unique<CpuModel>(rank, model_shape(config, rank.size(), options),
                                             checkpoint)) {}

}  // namespace stretto
