// The rotary embedding that config.json describes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/printable.h"
#include "stretto/model/checkpoint/config_parts.h"

namespace stretto {
namespace {

std::string path_of(const JsonFields& fields, const char* field) {
  return fmt::format("{}: {}", fields.where(), field);
}

constexpr std::pair<RopeConfig::Type, const char*> kTypes[] = {
    {RopeConfig::Type::kDefault, "default"},
    {RopeConfig::Type::kLinear, "linear"},
    {RopeConfig::Type::kDynamic, "dynamic"},
    {RopeConfig::Type::kYarn, "yarn"},
    {RopeConfig::Type::kLlama3, "llama3"}};

const char* type_name(RopeConfig::Type type) {
  for (auto [known, name] : kTypes) {
    if (type == known) return name;
  }
  throw InternalError("type_name: bad rope type");
}

RopeConfig::Type rope_type(const JsonFields& fields, Warnings& warnings) {
  const char* field = fields.has("rope_type") ? "rope_type" : "type";
  std::string type =
      settle<std::string>({{path_of(fields, "rope_type"), fields.optional_text("rope_type")},
                           {path_of(fields, "type"), fields.optional_text("type")}},
                          warnings)
          .value_or("default");
  for (auto [known, name] : kTypes) {
    if (type == name) return known;
  }
  fields.fail(field,
              fmt::format("'{}' is not supported; supported: default, linear, dynamic, yarn, "
                          "llama3",
                          printable(type)));
}

// Inside the rotary parameters, or beside them; the former counts.
std::optional<std::int64_t> original_positions(const JsonFields& config, const JsonFields& rope,
                                               Warnings& warnings) {
  const char* field = "original_max_position_embeddings";
  return settle<std::int64_t>(
      {{path_of(rope, field), rope.optional_integer(field, 1, kMaxPositions)},
       {path_of(config, field), config.optional_integer(field, 1, kMaxPositions)}},
      warnings);
}

void read_llama3(const JsonFields& config, const JsonFields& rope, RopeConfig& out,
                 Warnings& warnings) {
  out.low_freq_factor = rope.number("low_freq_factor", 1e-3, 1e6);
  out.high_freq_factor = rope.number("high_freq_factor", 1e-3, 1e6);
  if (out.high_freq_factor <= out.low_freq_factor) {
    rope.fail("high_freq_factor", fmt::format("{} must be more than low_freq_factor {}",
                                              out.high_freq_factor, out.low_freq_factor));
  }
  auto original = original_positions(config, rope, warnings);
  if (!original) rope.fail("original_max_position_embeddings", "missing");
  out.original_max_position_embeddings = *original;
}

// What cosines and sines are multiplied by (YaRN, arXiv 2309.00071, section 3.4): as given, as the
// ratio of two given scales (DeepSeek's spelling), or 0.1 ln(factor) + 1.
double yarn_attention_factor(const JsonFields& rope, double factor) {
  constexpr double kMost = 1e3;
  auto given = rope.optional_number("attention_factor", 0, kMost);
  auto scale = rope.optional_number("mscale", 0, kMost);
  auto scale_all = rope.optional_number("mscale_all_dim", 0, kMost);
  if (given) return *given;
  double grown = factor > 1 ? 0.1 * std::log(factor) : 0.0;
  if (scale.value_or(0) > 0 && scale_all.value_or(0) > 0) {
    return (*scale * grown + 1) / (*scale_all * grown + 1);
  }
  return grown + 1;
}

// `factor` and the original positions are taken as they stand, also where their product is not
// max_position_embeddings; releases of the reference implementation differ there. Another product
// is told.
void compare_with_positions(const JsonFields& config, const JsonFields& rope, double factor,
                            std::int64_t original, std::int64_t max_positions,
                            Warnings& warnings) {
  if (original == max_positions) return;  // users add a factor and leave the rest
  double implied = static_cast<double>(max_positions) / static_cast<double>(original);
  if (std::abs(implied - factor) <= 1e-3 * factor) return;
  settle<double>({{path_of(rope, "factor"), factor},
                  {path_of(config, "max_position_embeddings / original_max_position_embeddings"),
                   implied}},
                 warnings);
}

void read_yarn(const JsonFields& config, const JsonFields& rope, std::int64_t max_positions,
               RopeConfig& out, Warnings& warnings) {
  out.beta_fast = rope.optional_number("beta_fast", 1e-3, 1e6).value_or(32);
  out.beta_slow = rope.optional_number("beta_slow", 1e-3, 1e6).value_or(1);
  if (out.beta_fast < out.beta_slow) {
    rope.fail("beta_fast",
              fmt::format("{} must be at least beta_slow {}", out.beta_fast, out.beta_slow));
  }
  if (out.theta <= 1) config.fail("rope_theta", "must be more than 1 with rope type yarn");
  out.truncate = rope.optional_boolean("truncate").value_or(true);
  out.attention_factor = yarn_attention_factor(rope, out.factor);
  out.original_max_position_embeddings =
      original_positions(config, rope, warnings).value_or(max_positions);
  compare_with_positions(config, rope, out.factor, out.original_max_position_embeddings,
                         max_positions, warnings);
}

// A field that the type knows nothing of is a typo, or meant for another type.
void tell_unused_fields(const Json& object, const JsonFields& fields, RopeConfig::Type type,
                        Warnings& warnings) {
  using Type = RopeConfig::Type;
  const auto used = [&](std::string_view key) {
    for (std::string_view known : {"rope_type", "type", "rope_theta", "partial_rotary_factor"}) {
      if (key == known) return true;
    }
    if (type == Type::kDefault) return false;
    if (key == "factor") return true;
    if (type == Type::kLinear) return false;
    if (key == "original_max_position_embeddings") return true;
    if (type == Type::kLlama3) return key == "low_freq_factor" || key == "high_freq_factor";
    if (type == Type::kDynamic) return false;
    for (std::string_view known :
         {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}) {
      if (key == known) return true;
    }
    return false;
  };
  for (const auto& [key, value] : object.items()) {
    if (used(key) || value.is_null()) continue;
    warnings.push_back(fmt::format("{}: '{}' is {}, which rope type {} does not use",
                                   fields.where(), printable(key), quote_json(value),
                                   type_name(type)));
  }
}

void refuse_partial_rotary(const JsonFields& fields) {
  if (fields.optional_number("partial_rotary_factor", 0, 1).value_or(1.0) != 1.0) {
    fields.fail("partial_rotary_factor", "only 1 is supported");
  }
}

constexpr double kMinTheta = 1.0;
constexpr double kMaxTheta = 1e15;

// The object of rotary parameters that counts, and the one that does not: a rope_scaling, which
// users add by hand, goes before the rope_parameters that newer exporters write.
struct RopeObjects {
  const char* field = nullptr;  // null where there is none
  const char* other = nullptr;
};

RopeObjects rope_objects(const JsonFields& config) {
  const auto told = [&](const char* field) {
    const Json* object = config.find(field);
    return object != nullptr && !(object->is_object() && object->empty());
  };
  const bool scaling = told("rope_scaling"), parameters = told("rope_parameters");
  if (scaling) return {"rope_scaling", parameters ? "rope_parameters" : nullptr};
  return {parameters ? "rope_parameters" : nullptr, nullptr};
}

JsonFields fields_of(const JsonFields& config, const char* field) {
  return JsonFields(*config.find(field), fmt::format("{}: {}", config.where(), field));
}

// What both objects tell is compared; the base, which has further sources, is settled by
// read_theta.
void compare_objects(const JsonFields& config, const RopeObjects& objects, Warnings& warnings) {
  const Json& taken = *config.find(objects.field);
  const Json& other = *config.find(objects.other);
  if (!other.is_object()) return;  // not used
  const auto kind = [](const Json& object) {
    for (const char* key : {"rope_type", "type"}) {
      if (auto found = object.find(key); found != object.end() && found->is_string()) {
        return printable(found->get_ref<const std::string&>());
      }
    }
    return std::string("default");
  };
  const auto where = [&](const char* field) { return path_of(config, field); };
  settle<std::string>({{where(objects.field) + ".rope_type", kind(taken)},
                       {where(objects.other) + ".rope_type", kind(other)}},
                      warnings);
  for (const auto& [key, value] : taken.items()) {
    auto same = other.find(key);
    bool named = key == "rope_type" || key == "type" || key == "rope_theta";
    if (named || same == other.end() || value.is_structured() || same->is_structured()) continue;
    const std::string tail = "." + printable(key);
    if (value == *same) continue;
    settle<std::string>({{where(objects.field) + tail, quote_json(value)},
                         {where(objects.other) + tail, quote_json(*same)}},
                        warnings);
  }
}

// As transformers reads it: in the object that counts, beside it, or the family's own.
double read_theta(const JsonFields& config, const RopeObjects& objects, const FamilyTraits& traits,
                  Warnings& warnings) {
  std::vector<Source<double>> sources;
  const auto add = [&](const JsonFields& fields) {
    sources.push_back({path_of(fields, "rope_theta"),
                       fields.optional_number("rope_theta", kMinTheta, kMaxTheta)});
  };
  if (objects.field != nullptr) add(fields_of(config, objects.field));
  add(config);
  sources.push_back({fmt::format("the default rope_theta of model_type {}", traits.model_type),
                     traits.default_rope_theta});
  // The family's own value contradicts nothing: it only stands in.
  auto told = std::find_if(sources.begin(), sources.end(),
                           [](const Source<double>& source) { return source.value.has_value(); });
  if (told + 1 != sources.end()) sources.pop_back();
  if (objects.other != nullptr && config.find(objects.other)->is_object()) {
    add(fields_of(config, objects.other));
  }
  return *settle(sources, warnings);
}

}  // namespace

RopeConfig read_rope(const JsonFields& config, const FamilyTraits& traits,
                     std::int64_t max_positions, Warnings& warnings) {
  refuse_partial_rotary(config);
  const RopeObjects objects = rope_objects(config);
  RopeConfig rope;
  if (objects.other != nullptr) {
    fields_of(config, objects.field);  // an object, or it is refused
    compare_objects(config, objects, warnings);
  }
  rope.theta = read_theta(config, objects, traits, warnings);
  if (objects.field == nullptr) return rope;
  JsonFields fields = fields_of(config, objects.field);
  for (const auto& [key, value] : config.find(objects.field)->items()) {
    if (value.is_object()) {
      config.fail(objects.field,
                  fmt::format("'{}': parameters per layer type are not supported", printable(key)));
    }
  }
  refuse_partial_rotary(fields);
  rope.type = rope_type(fields, warnings);
  tell_unused_fields(*config.find(objects.field), fields, rope.type, warnings);
  if (rope.type != RopeConfig::Type::kDefault) rope.factor = fields.number("factor", 1e-3, 1e6);
  if (rope.type == RopeConfig::Type::kLlama3) read_llama3(config, fields, rope, warnings);
  if (rope.type == RopeConfig::Type::kYarn) {
    read_yarn(config, fields, max_positions, rope, warnings);
  }
  return rope;
}

}  // namespace stretto
