// What a user would lose: predictions for the machine that they describe, and an error that says
// where a description is wrong.
#include "stretto/predict/machine.h"

#include <gtest/gtest.h>

#include "stretto/base/json.h"
#include "stretto/base/test_errors.h"

namespace stretto::predict {
namespace {

Json h200() { return to_json(find_machine("h200x4")); }

TEST(Machine, BuiltInMachinesDifferInTheirGpus) {
  EXPECT_EQ(builtin_machines(), (std::vector<std::string>{"h200x1", "h200x2", "h200x4", "h200x8"}));
  for (const std::string& name : builtin_machines()) {
    Machine m = find_machine(name);
    EXPECT_EQ(m.name, name);
    EXPECT_EQ(name, "h200x" + std::to_string(m.num_gpus));
    EXPECT_EQ(m.num_sms, 132);
  }
}

TEST(Machine, FileTextRoundTrips) {
  Machine m = find_machine("h200x2");
  EXPECT_EQ(to_json(read_machine(to_json(m), "again")), to_json(m));
  EXPECT_DOUBLE_EQ(m.tensor_flops.at(DType::kBF16), 800e12);
  EXPECT_DOUBLE_EQ(m.link_latency, 0.9e-6);
}

TEST(Machine, CurvesTellWhatOneSmAndManyReach) {
  RateCurve curve{{{4, 100}, {8, 180}, {16, 210}, {32, 190}}};
  EXPECT_DOUBLE_EQ(curve.per_sm(), 25);
  EXPECT_DOUBLE_EQ(curve.best(), 210);
}

struct BadField {
  const char* path;
  Json value;
  const char* message;
};

TEST(Machine, ErrorsNameFileAndField) {
  const BadField cases[] = {
      {"/gpus", 0, "m.json: gpus: "},
      {"/memory/hbm_gbs", -1, "m.json: memory: hbm_gbs: "},
      {"/memory/hbm_gbs", "fast", "m.json: memory: hbm_gbs: "},
      {"/link", 3, "m.json: link: need an object"},
      {"/link/sm_push_gbs", Json::array(), "m.json: link: sm_push_gbs: need a list"},
      {"/link/sm_pull_gbs", {{8, 1}, {4, 2}}, "m.json: link: sm_pull_gbs: need ascending"},
      {"/link/sm_load_gbs", 3, "m.json: link: sm_load_gbs: need a list"},
      {"/tensor/tflops", {{"float7", 1}}, "m.json: tensor: tflops: float7: "},
      {"/copy_engine/on_sms", 1, "m.json: copy_engine: on_sms: "},
      {"/overlap", 2, "m.json: overlap: "},
      {"/power_ms_per_gb/link", -1, "m.json: power_ms_per_gb: link: "},
      {"/power_ms_per_gb/copied", -1, "m.json: power_ms_per_gb: copied: "},
      {"/memory/thread_bytes", 0, "m.json: memory: thread_bytes: "},
      {"/link/packet_gbs", 0, "m.json: link: packet_gbs: "},
  };
  for (const BadField& c : cases) {
    Json json = h200();
    json[Json::json_pointer(c.path)] = c.value;
    try {
      read_machine(json, "m.json");
      ADD_FAILURE() << c.path << " was accepted";
    } catch (const UserError& e) {
      EXPECT_EQ(std::string(e.what()).rfind(c.message, 0), 0u) << e.what();
    }
  }
}

TEST(Machine, EveryFieldIsNeeded) {
  Json whole = h200();
  for (const auto& [section, value] : whole.items()) {
    Json json = whole;
    json.erase(section);
    EXPECT_THROW(read_machine(json, "m.json"), UserError) << section;
    if (!value.is_object()) continue;
    for (const auto& [field, inner] : value.items()) {
      if (field == "on_sms") continue;
      json = whole;
      json[section].erase(field);
      EXPECT_THROW(read_machine(json, "m.json"), UserError) << section << "/" << field;
    }
  }
}

TEST(Machine, UnknownNameListsTheBuiltInOnes) {
  try {
    find_machine("h300");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("h200x4"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace stretto::predict
