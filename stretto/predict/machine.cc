#include "stretto/predict/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "stretto/base/errors.h"
#include "stretto/base/json.h"
#include "stretto/base/json_fields.h"
#include "stretto/predict/builtin_machines.h"

namespace stretto::predict {
namespace {

constexpr double kGiga = 1e9, kMilli = 1e-3, kMicro = 1e-6, kMega = 1e6, kTera = 1e12;
constexpr double kMost = 1e6;  // of any rate in its unit: keeps arithmetic finite
constexpr std::size_t kMaxPoints = 64;
constexpr std::size_t kMaxMachineBytes = std::size_t{1} << 20;

// An object inside the machine's object; errors name the path to the field.
class Section {
 public:
  Section(const JsonFields& parent, const char* field)
      : fields_(object(parent, field), parent.where() + ": " + field) {}

  double rate(const char* field, double unit) const {
    return fields_.number(field, 1e-3, kMost) * unit;
  }
  double time(const char* field) const { return fields_.number(field, 0, kMost) * kMicro; }
  double number(const char* field, double min, double max) const {
    return fields_.number(field, min, max);
  }
  const JsonFields& fields() const { return fields_; }

 private:
  static const Json& object(const JsonFields& parent, const char* field) {
    const Json* found = parent.find(field);
    if (found == nullptr || !found->is_object()) parent.fail(field, "need an object");
    return *found;
  }

  JsonFields fields_;
};

RateCurve read_curve(const JsonFields& fields, const char* field) {
  const Json* list = fields.find(field);
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > kMaxPoints) {
    fields.fail(field, "need a list of [SMs, GB/s]");
  }
  RateCurve curve;
  for (const Json& point : *list) {
    if (!point.is_array() || point.size() != 2 || !point[0].is_number() || !point[1].is_number()) {
      fields.fail(field, "need pairs [SMs, GB/s], got " + quote_json(point));
    }
    RateCurve::Point p{point[0].get<double>(), point[1].get<double>()};
    double last = curve.points.empty() ? 0 : curve.points.back().sms;
    if (!(p.sms > last && p.sms < kMost) || !(p.rate > 0 && p.rate < kMost)) {
      fields.fail(field, "need ascending SMs and rates above 0, got " + quote_json(point));
    }
    p.rate *= kGiga;
    curve.points.push_back(p);
  }
  return curve;
}

Json curve_json(const RateCurve& curve) {
  Json list = Json::array();
  for (const RateCurve::Point& p : curve.points) list.push_back({p.sms, p.rate / kGiga});
  return list;
}

void read_tensor(const JsonFields& fields, Machine& m) {
  Section tensor(fields, "tensor");
  m.burst = tensor.number("burst", 1, 100);
  Section rates(tensor.fields(), "tflops");
  for (const auto& [key, value] : tensor.fields().find("tflops")->items()) {
    DType dtype = DType::kF32;
    try {
      dtype = parse_dtype(key);
    } catch (const UserError& e) {
      rates.fields().fail(key.c_str(), e.what());
    }
    m.tensor_flops[dtype] = rates.rate(key.c_str(), kTera);
  }
  if (m.tensor_flops.empty()) tensor.fields().fail("tflops", "need a rate for at least one dtype");
}

void read_memory(const JsonFields& fields, Machine& m) {
  Section memory(fields, "memory");
  m.hbm_rate = memory.rate("hbm_gbs", kGiga);
  m.l2_rate = memory.rate("l2_gbs", kGiga);
  m.l2_bytes = memory.rate("l2_mb", kMega);
  m.sm_rate = memory.rate("sm_gbs", kGiga);
  m.sm_copy_rate = memory.rate("sm_copy_gbs", kGiga);
  m.load_latency = memory.time("latency_us");
  m.thread_bytes = memory.number("thread_bytes", 1, kMost);
}

void read_links(const JsonFields& fields, Machine& m) {
  Section link(fields, "link");
  m.link_rate = link.rate("gbs", kGiga);
  m.link_latency = link.time("latency_us");
  m.remote_load_latency = link.time("load_latency_us");
  m.push = read_curve(link.fields(), "sm_push_gbs");
  m.packet_rate = link.rate("packet_gbs", kGiga);
  m.pull = read_curve(link.fields(), "sm_pull_gbs");
  m.load = read_curve(link.fields(), "sm_load_gbs");
  Section copy(fields, "copy_engine");
  m.copy_rate = copy.rate("gbs", kGiga);
  m.copy_latency = copy.time("latency_us");
  m.copy_setup = copy.time("setup_us");
  m.copies_on_sms = copy.fields().optional_boolean("on_sms").value_or(false);
}

const BuiltinMachine* find_builtin(std::string_view wanted) {
  for (const BuiltinMachine& b : builtin_machine_texts()) {
    if (b.name == wanted) return &b;
  }
  return nullptr;
}

}  // namespace

double RateCurve::per_sm() const {
  double most = 0;
  for (const Point& p : points) most = std::max(most, p.rate / p.sms);
  return most;
}

double RateCurve::best() const {
  double best = 0;
  for (const Point& p : points) best = std::max(best, p.rate);
  return best;
}

Machine read_machine(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  Machine m;
  m.name = fields.text("name");
  m.num_gpus = static_cast<int>(fields.integer("gpus", 1, 64));
  m.num_sms = static_cast<int>(fields.integer("sms", 1, 4096));
  read_tensor(fields, m);
  m.vector_ops = fields.number("vector_gops_per_sm", 1e-3, kMost) * kGiga;
  m.overlap = fields.number("overlap", 0, 1);
  read_memory(fields, m);
  read_links(fields, m);
  Section launch(fields, "launch_us");
  m.graph_launch = launch.time("graph");
  m.eager_launch = launch.time("eager");
  Section overhead(fields, "overhead_us");
  m.notify_cost = overhead.time("notify");
  m.bulk_notify_cost = overhead.time("bulk_notify");
  m.local_signal_latency = overhead.time("local_signal");
  m.k_step_cost = overhead.time("k_step");
  m.tile_cost = overhead.time("tile");
  Section power(fields, "power_ms_per_gb");
  m.power.l2 = power.number("l2", 0, kMost) * kMilli / kGiga;
  m.power.hbm = power.number("hbm", 0, kMost) * kMilli / kGiga;
  m.power.link = power.number("link", 0, kMost) * kMilli / kGiga;
  m.power.copied = power.number("copied", 0, kMost) * kMilli / kGiga;
  m.power.clock = fields.number("power_clock_exponent", 0, 4);
  return m;
}

Json to_json(const Machine& m) {
  Json tflops = Json::object();
  for (const auto& [dtype, rate] : m.tensor_flops) tflops[name(dtype)] = rate / kTera;
  return {{"name", m.name},
          {"gpus", m.num_gpus},
          {"sms", m.num_sms},
          {"tensor", {{"tflops", tflops}, {"burst", m.burst}}},
          {"vector_gops_per_sm", m.vector_ops / kGiga},
          {"overlap", m.overlap},
          {"memory",
           {{"hbm_gbs", m.hbm_rate / kGiga},
            {"l2_gbs", m.l2_rate / kGiga},
            {"l2_mb", m.l2_bytes / kMega},
            {"sm_gbs", m.sm_rate / kGiga},
            {"sm_copy_gbs", m.sm_copy_rate / kGiga},
            {"latency_us", m.load_latency / kMicro},
            {"thread_bytes", m.thread_bytes}}},
          {"link",
           {{"gbs", m.link_rate / kGiga},
            {"latency_us", m.link_latency / kMicro},
            {"load_latency_us", m.remote_load_latency / kMicro},
            {"sm_push_gbs", curve_json(m.push)},
            {"packet_gbs", m.packet_rate / kGiga},
            {"sm_pull_gbs", curve_json(m.pull)},
            {"sm_load_gbs", curve_json(m.load)}}},
          {"copy_engine",
           {{"gbs", m.copy_rate / kGiga},
            {"latency_us", m.copy_latency / kMicro},
            {"setup_us", m.copy_setup / kMicro},
            {"on_sms", m.copies_on_sms}}},
          {"launch_us", {{"graph", m.graph_launch / kMicro}, {"eager", m.eager_launch / kMicro}}},
          {"overhead_us",
           {{"notify", m.notify_cost / kMicro},
            {"bulk_notify", m.bulk_notify_cost / kMicro},
            {"local_signal", m.local_signal_latency / kMicro},
            {"k_step", m.k_step_cost / kMicro},
            {"tile", m.tile_cost / kMicro}}},
          {"power_ms_per_gb",
           {{"l2", m.power.l2 * kGiga / kMilli},
            {"hbm", m.power.hbm * kGiga / kMilli},
            {"link", m.power.link * kGiga / kMilli},
            {"copied", m.power.copied * kGiga / kMilli}}},
          {"power_clock_exponent", m.power.clock}};
}

std::vector<std::string> builtin_machines() {
  std::vector<std::string> names;
  for (const BuiltinMachine& b : builtin_machine_texts()) names.emplace_back(b.name);
  return names;
}

Machine find_machine(const std::string& name_or_path) {
  if (const BuiltinMachine* builtin = find_builtin(name_or_path)) {
    return read_machine(parse_json(builtin->text, name_or_path), name_or_path);
  }
  std::error_code error;
  if (!std::filesystem::exists(name_or_path, error)) {
    throw UserError(
        fmt::format("--machine '{}': neither a file nor a built-in machine; built in: {}",
                    name_or_path, fmt::join(builtin_machines(), " ")));
  }
  return read_machine(read_json_file(name_or_path, {.max_bytes = kMaxMachineBytes}), name_or_path);
}

}  // namespace stretto::predict
