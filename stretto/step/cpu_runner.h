// A step plan (runner.h) on one CPU rank, in memory of its own.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stretto/base/progress.h"
#include "stretto/launch/executable.h"
#include "stretto/runtime/world.h"
#include "stretto/step/runner.h"

namespace stretto::step {

// This rank's handles: in the world of all ranks, and in that of its group.
struct Worlds {
  Rank& all;
  Rank& group;
};

struct FreeBytes {
  void operator()(std::byte* p) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeBytes>;
// What locals and outputs lie in.
struct CpuArena {
  AlignedBytes data;
  std::size_t bytes = 0;
};

struct CpuRunnerOptions {
  Sharing sharing = Sharing::kByLife;
  // Another runner's, taken where it is large enough: what that one leaves is lost once this one
  // runs.
  std::shared_ptr<CpuArena> arena = nullptr;
  // Before a node, fills what the arena holds that no node needs with bytes of a NaN, so that a
  // read of it shows. For tests.
  bool poison = false;
  Progress* progress = nullptr;  // hears what the construction does; outlives that
};

class CpuRunner final : public Runner {
 public:
  // `given`: memory of constants and states, by name, but for symmetric ones; outlives this.
  // Collective, as the destruction. UserError as check(), and where one is not given; Rejected for
  // a program that cannot be proved.
  CpuRunner(const Worlds& worlds, Plan plan, const std::map<std::string, std::byte*>& given,
            const CpuRunnerOptions& options = {});
  ~CpuRunner() override;

  std::byte* input(const std::string& buffer) override { return data(buffer); }
  void copy_rows(const std::string& from, std::span<const std::int64_t> rows,
                 const std::string& to) override;
  const std::byte* read(const std::string& output, std::size_t /*bytes*/) override {
    return data(output);
  }
  const std::shared_ptr<CpuArena>& arena() const { return arena_; }

 private:
  static AlignedBytes zeros(std::size_t bytes);

  struct Symmetric {
    Rank& world;
    std::unique_ptr<SymmetricBuffer> buffer;
  };
  // A node made ready: what changes from step to step are its extents and where `moving` begins.
  struct ReadyNode {
    struct Moving {
      std::size_t tensor = 0;
      std::byte* data = nullptr;
      std::size_t row_bytes = 0;
      Size from;
    };
    Executable* program = nullptr;
    Args args;
    std::vector<Moving> moving;
    std::shared_ptr<Launch> launch;
  };

  void run_section(const Section& section, const std::vector<std::int64_t>& values) override;
  void load_programs(Progress* progress);
  void allocate(const std::map<std::string, std::byte*>& given);
  const SymmetricBuffer* alone(const Buffer& buffer, std::byte* data);
  TensorArg allocate_symmetric(const Buffer& buffer);
  ReadyNode prepare(const Node& node);
  std::byte* data(const std::string& buffer) const;

  Worlds worlds_;
  std::vector<std::unique_ptr<Executable>> programs_;
  std::vector<TensorArg> buffers_;  // by buffer
  std::shared_ptr<CpuArena> arena_;
  std::vector<AlignedBytes> inputs_;
  std::vector<std::unique_ptr<SymmetricBuffer>> alone_;
  std::vector<Symmetric> symmetric_;
  std::vector<ReadyNode> nodes_;
};

}  // namespace stretto::step
