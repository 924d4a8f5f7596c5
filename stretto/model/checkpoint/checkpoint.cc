#include "stretto/model/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "stretto/base/downloaded_file.h"
#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/base/printable.h"

namespace stretto {
namespace {

constexpr std::size_t kMaxIndexBytes = 64 << 20;
constexpr std::size_t kMaxShards = 4096;

bool is_plain_file_name(std::string_view name) {
  if (name.size() > 255 || !name.ends_with(".safetensors") || name.starts_with('.')) return false;
  for (char c : name) {
    auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '/' || c == '\\') return false;
  }
  return true;
}

// Shards of which no index is there, as some writers leave them: model-00001-of-00002.safetensors
// and so on, sorted. UserError where one of the numbers is missing.
std::vector<std::filesystem::path> numbered_shards(const std::filesystem::path& directory) {
  std::map<std::string, std::size_t> found;  // name -> how many there should be
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    unsigned number = 0, count = 0;
    int end = -1;
    if (std::sscanf(name.c_str(), "model-%5u-of-%5u.safetensors%n", &number, &count, &end) == 2 &&
        end == static_cast<int>(name.size())) {
      found.emplace(name, count);
    }
  }
  std::vector<std::filesystem::path> shards;
  for (const auto& [name, count] : found) {
    if (count != found.size()) {
      throw UserError(fmt::format("{}: {} of {} shards are there, and no index lists them",
                                  (directory / name).string(), found.size(), count));
    }
    shards.push_back(directory / name);
  }
  return shards;
}

// What else may be in a directory that users point at, for the error.
std::string other_formats(const std::filesystem::path& directory) {
  std::string names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string extension = entry.path().extension().string();
    for (const char* known : {".gguf", ".bin", ".pth", ".pt", ".safetensors"}) {
      if (extension == known) names = printable(entry.path().filename().string());
    }
  }
  return names.empty() ? names : fmt::format("; '{}' is not read", names);
}

bool same_tensor(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.unread_dtype == b.unread_dtype && a.shape == b.shape &&
         std::equal(a.data, a.data + a.size_bytes, b.data, b.data + b.size_bytes);
}

std::string dtype_text(const TensorView& view) {
  return view.unread_dtype.empty() ? stretto::name(view.dtype) : std::string(view.unread_dtype);
}

// model.safetensors counts, as in transformers; an index beside it that speaks of other files is
// told.
void compare_with_index(const std::filesystem::path& single, const std::filesystem::path& index,
                        Warnings& warnings) {
  std::map<std::string, std::string> shard_of;
  try {
    shard_of = parse_shard_index(read_downloaded_file(index, kMaxIndexBytes), index.string());
  } catch (const UserError&) {
    return;  // it is not used
  }
  for (const auto& [name, shard] : shard_of) {
    if (shard == single.filename()) continue;
    settle<std::string>(
        {{fmt::format("{}: the file of the weights", single.string()), single.filename().string()},
         {fmt::format("{}: weight_map: that of tensor '{}'", index.string(), printable(name)),
          printable(shard)}},
        warnings);
    return;
  }
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& where) {
  Json index = parse_json(text, where, {.max_bytes = kMaxIndexBytes, .max_depth = 16});
  JsonFields fields(index, where);
  const Json* weight_map = fields.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->empty()) {
    fields.fail("weight_map", "need an object from tensor name to shard");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      fields.fail("weight_map", fmt::format("tensor '{}': {} is not the name of a .safetensors "
                                            "file in the same directory",
                                            printable(tensor), quote_json(shard)));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

Checkpoint::Checkpoint(const std::filesystem::path& directory) : directory_(directory) {
  std::filesystem::path single = directory / "model.safetensors";
  std::filesystem::path index = directory / "model.safetensors.index.json";
  check_model_directory(directory);
  if (!is_absent(single)) {
    if (!is_absent(index)) compare_with_index(single, index, warnings_);
    files_.emplace_back(single);
    for (const auto& [name, view] : files_.back().tensors()) tensors_.emplace(name, &view);
  } else if (!is_absent(index)) {
    open_shards(index);
  } else if (auto shards = numbered_shards(directory); !shards.empty()) {
    open_numbered(shards);
  } else {
    throw UserError(fmt::format("{}: has neither model.safetensors nor {}{}", directory.string(),
                                index.filename().string(), other_formats(directory)));
  }
  if (const auto adapter = directory / "adapter_config.json"; !is_absent(adapter)) {
    warnings_.push_back(
        fmt::format("{}: the adapter beside the weights is not applied", adapter.string()));
  }
}

Checkpoint::Checkpoint(std::filesystem::path directory, std::unique_ptr<std::byte[]> memory,
                       const TensorMap& views)
    : directory_(std::move(directory)),
      memory_(std::move(memory)),
      views_(std::make_unique<TensorMap>(views)) {
  for (const auto& [name, view] : *views_) tensors_.emplace(name, &view);
}

// A tensor may be in several shards, as long as it is the same.
const SafetensorsFile& Checkpoint::open_shard(const std::filesystem::path& path, Holders& holder) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const auto& [name, view] : file.tensors()) {
    auto [other, fresh] = holder.emplace(name, &file);
    if (!fresh && !same_tensor(view, other->second->tensors().find(name)->second)) {
      throw UserError(fmt::format("{}: tensor '{}': is also in {}, and differs", path.string(),
                                  printable(name), other->second->path().string()));
    }
  }
  return file;
}

void Checkpoint::open_numbered(const std::vector<std::filesystem::path>& shards) {
  files_.reserve(shards.size());  // tensors_ points into it
  Holders holder;
  for (const std::filesystem::path& shard : shards) {
    for (const auto& [name, view] : open_shard(shard, holder).tensors()) {
      tensors_.emplace(name, &view);
    }
  }
}

void Checkpoint::open_shards(const std::filesystem::path& index) {
  auto shard_of = parse_shard_index(read_downloaded_file(index, kMaxIndexBytes), index.string());
  std::map<std::string, const SafetensorsFile*> shards;
  for (const auto& [name, shard] : shard_of) shards.emplace(shard, nullptr);
  if (shards.size() > kMaxShards) {
    throw UserError(fmt::format("{}: weight_map: {} shards, at most {} are allowed", index.string(),
                                shards.size(), kMaxShards));
  }
  files_.reserve(shards.size());  // tensors_ points into it
  Holders holder;
  for (auto& [shard, file] : shards) {
    if (is_absent(directory_ / shard)) {
      throw UserError(
          fmt::format("{}: weight_map: shard '{}' is missing", index.string(), printable(shard)));
    }
    file = &open_shard(directory_ / shard, holder);
  }
  for (const auto& [name, shard] : shard_of) {
    const TensorMap& tensors = shards.at(shard)->tensors();
    auto found = tensors.find(name);
    if (found == tensors.end()) {
      throw UserError(fmt::format("{}: tensor '{}': not there, although {} lists it",
                                  (directory_ / shard).string(), printable(name),
                                  index.filename().string()));
    }
    tensors_.emplace(name, &found->second);
  }
  for (const auto& [name, file] : holder) {
    if (tensors_.emplace(name, &file->tensors().find(name)->second).second) {
      unlisted_.insert(name);
    }
  }
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, view] : tensors_) names.push_back(name);
  return names;
}

void Checkpoint::drop(std::string_view name) {
  if (auto found = tensors_.find(name); found != tensors_.end()) tensors_.erase(found);
  if (auto found = unlisted_.find(name); found != unlisted_.end()) unlisted_.erase(found);
}

void Checkpoint::also_known_as(std::string_view name, const std::string& other) {
  tensors_.emplace(other, &tensor(name));
}

void Checkpoint::check_unchanged() const {
  for (const SafetensorsFile& file : files_) file.check_unchanged();
}

const TensorView& Checkpoint::find(std::string_view name) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw UserError(fmt::format("{}: tensor '{}': missing", directory_.string(), printable(name)));
  }
  return *found->second;
}

const TensorView& Checkpoint::tensor(std::string_view name) const {
  const TensorView& view = find(name);
  const bool read =
      view.unread_dtype.empty() &&
      (view.dtype == DType::kF32 || view.dtype == DType::kF16 || view.dtype == DType::kBF16);
  if (!read) {
    throw UserError(fmt::format("{}: tensor '{}': dtype {}: need float32, float16 or bfloat16",
                                directory_.string(), printable(name), dtype_text(view)));
  }
  return view;
}

const TensorView& Checkpoint::fp8_tensor(std::string_view name) const {
  const TensorView& view = find(name);
  if (!view.unread_dtype.empty() || view.dtype != DType::kF8E4M3) {
    throw UserError(fmt::format("{}: tensor '{}': dtype {}: need {}", directory_.string(),
                                printable(name), dtype_text(view), stretto::name(DType::kF8E4M3)));
  }
  return view;
}

}  // namespace stretto
