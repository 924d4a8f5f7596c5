// The weights of a Hugging Face model directory: model.safetensors, the shards that
// model.safetensors.index.json lists, or numbered shards without an index, as one set of named
// tensors. config.h says which of them a
// model needs; loading copies from here.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/base/sources.h"
#include "stretto/model/checkpoint/safetensors.h"

namespace stretto {

class Checkpoint {
 public:
  // Maps every shard and checks all of them. UserError naming file and field or tensor when a file
  // is missing or broken, when a shard lacks a tensor that the index promises, or when two shards
  // hold different tensors of the same name.
  explicit Checkpoint(const std::filesystem::path& directory);

  // Weights made in memory (dummy_checkpoint.h), which the views point into.
  Checkpoint(std::filesystem::path directory, std::unique_ptr<std::byte[]> memory,
             const TensorMap& views);

  const std::filesystem::path& directory() const { return directory_; }
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  std::vector<std::string> names() const;  // sorted
  void drop(std::string_view name);        // a tensor that nothing needs
  // In a shard, although the index does not list it.
  bool is_unlisted(std::string_view name) const { return unlisted_.find(name) != unlisted_.end(); }
  // Makes the tensor `name` known under `other`, too.
  void also_known_as(std::string_view name, const std::string& other);
  const Warnings& warnings() const { return warnings_; }
  // UserError naming a shard that another program has written to or cut short since it was mapped.
  void check_unchanged() const;
  // A weight: float32, float16 or bfloat16. UserError when it is missing or of another dtype. The
  // view lives as long as this checkpoint.
  const TensorView& tensor(std::string_view name) const;
  // A weight of e4m3. UserError as above.
  const TensorView& fp8_tensor(std::string_view name) const;

 private:
  const TensorView& find(std::string_view name) const;
  void open_shards(const std::filesystem::path& index);
  void open_numbered(const std::vector<std::filesystem::path>& shards);
  using Holders = std::map<std::string, const SafetensorsFile*, std::less<>>;  // by tensor
  const SafetensorsFile& open_shard(const std::filesystem::path& path, Holders& holder);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<TensorMap> views_;
  std::map<std::string, const TensorView*, std::less<>> tensors_;
  std::set<std::string, std::less<>> unlisted_;
  Warnings warnings_;
};

// Tensor name -> shard file name out of the text of an index; `where` names it in errors. Shard
// names are plain file names: anything that could leave the directory is a UserError.
std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& where);

}  // namespace stretto
