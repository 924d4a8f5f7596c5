#include "programs.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <map>
#include <utility>

#include "attention_programs.h"
#include "collective_programs.h"
#include "compiled.h"
#include "expert_programs.h"
#include "product_programs.h"
#include "stretto/base/env.h"
#include "stretto/base/errors.h"
#include "stretto/base/slow_notice.h"
#include "stretto/compiler.h"
#include "stretto/gpu/gpu_code.h"
#include "stretto/ir/parser.h"
#include "stretto/ir/printer.h"
#include "stretto/lang/program_file.h"
#include "stretto/ops/catalog/catalog.h"
#include "stretto/ops/choose/choose.h"
#include "stretto/predict/prediction.h"
#include "stretto/proof/print_instances.h"
#include "stretto/proof/prove.h"
#include "stretto/runtime/cuda/driver.h"
#include "stretto/runtime/world.h"

namespace nb = nanobind;

namespace stretto::python {
namespace {

const char* name(TensorKind kind) {
  switch (kind) {
    case TensorKind::kInput:
      return "input";
    case TensorKind::kOutput:
      return "output";
    case TensorKind::kState:
      return "state";
    case TensorKind::kBuffer:
      break;
  }
  return "buffer";
}

// (name, kind, dtype, bound shape, symmetric, ranks that have it) of each tensor that a caller
// passes.
nb::list tensors(const Program& program) {
  nb::list all;
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    const Tensor& t = program.tensors[i];
    if (t.kind == TensorKind::kBuffer) continue;
    nb::list ranks;
    for (int rank = 0; rank < program.world_size; ++rank) {
      if (is_given(program, static_cast<int>(i), rank)) ranks.append(rank);
    }
    all.append(nb::make_tuple(t.name, name(t.kind), stretto::name(t.dtype),
                              nb::tuple(nb::cast(bound_shape(program, static_cast<int>(i)))),
                              t.space == Space::kSymmetric, nb::tuple(ranks)));
  }
  return all;
}

// (name, bound, kind) of each run-time size and scalar, in the order in which a launch takes them.
// Of a float the launch takes the 32 bits.
nb::list extents(const Program& program) {
  nb::list all;
  for (const Var& var : program.vars) {
    if (var.kind != VarKind::kExtent && var.kind != VarKind::kScalar) continue;
    const char* kind = var.is_float ? "float" : var.kind == VarKind::kScalar ? "scalar" : "extent";
    all.append(nb::make_tuple(var.name, var.bound, kind));
  }
  return all;
}

std::string explain(const Program& program, const std::string& after, const std::string& emit) {
  if (emit == "tile-ir" && after.empty()) return print(program);
  Program found;
  bool any = after.empty();
  std::string names;
  Lowered whole = lower(program, [&](const Pass& pass, const Program& now, double) {
    names += fmt::format(" {}", pass.name);
    if (after != pass.name) return;
    found = now;
    any = true;
  });
  if (after.empty()) found = whole.program();
  if (!any) throw UserError(fmt::format("after='{}': no such pass; passes:{}", after, names));
  if (emit == "instances") return print_instances(found, extent_bounds(found));
  if (emit != "schedule-ir" && emit != "tile-ir") {
    throw UserError(fmt::format("emit='{}': one of tile-ir schedule-ir instances", emit));
  }
  return print(found);
}

// Tables of a usual launch of a program, for which it is predicted.
struct UsualTables {
  predict::LaunchTables tables = {};
};

nb::dict predict_program(const Program& program, const std::string& machine_name,
                         std::vector<std::int64_t> extents, bool eager, const UsualTables& usual) {
  predict::Machine machine = predict::find_machine(machine_name);
  Lowered schedule = lower(program);
  predict::Prediction p = predict::predict(schedule, machine,
                                           {.timetable = {.extents = std::move(extents),
                                                          .eager = eager,
                                                          .tables = usual.tables},
                                            .record = true});
  nb::list roles;
  for (const predict::RoleSummary& r : p.roles) {
    nb::dict role;
    role["name"] = r.name;
    role["workers"] = r.num_workers;
    role["busy_ms"] = r.busy_ms;
    role["wait_ms"] = r.wait_ms;
    roles.append(role);
  }
  nb::dict floors;
  floors["tensor"] = p.floors.tensor_ms;
  floors["hbm"] = p.floors.hbm_ms;
  floors["l2"] = p.floors.l2_ms;
  floors["nvlink"] = p.floors.link_ms;
  floors["copy_engine"] = p.floors.copy_ms;
  nb::dict d;
  d["time_ms"] = p.time_ms;
  d["exposed_comm_ms"] = p.exposed_comm_ms;
  d["bound_by"] = p.bound_by;
  d["machine"] = machine.name;
  d["floors_ms"] = floors;
  d["roles"] = roles;
  d["picture"] = predict::lane_picture(p);
  return d;
}

const OperatorInfo& operator_named(const std::string& name) {
  const OperatorInfo* op = find_operator(name);
  if (op != nullptr) return *op;
  std::string names;
  for (const OperatorInfo& info : catalog()) names += fmt::format(" {}", info.name);
  throw UserError(fmt::format("'{}' is no operator; operators:{}", name, names));
}

// Sizes that are 0 are the operator's or the file's own.
OpShape shape_of(int ranks, std::int64_t m, std::int64_t n, std::int64_t k,
                 const std::string& dtype) {
  if (ranks < 1 || ranks > World::kMaxWorldSize) {
    throw UserError(fmt::format("{} ranks: need 1 to {}", ranks, World::kMaxWorldSize));
  }
  for (const auto& [name, size] : {std::pair("m", m), {"n", n}, {"k", k}}) {
    if (size < 0) throw UserError(fmt::format("{} is {}, need 0 or more", name, size));
  }
  return {.world_size = ranks, .m = m, .n = n, .k = k, .dtype = parse_dtype(dtype)};
}

// `num_sms`, of a GPU; 0: CPU ranks.
int sms_of(const std::string& target, std::int64_t num_sms) {
  if (target != "cuda" && target != "cpu") {
    throw UserError(fmt::format("target '{}': one of cuda, cpu", target));
  }
  constexpr std::int64_t kMost = 1024;
  if (num_sms < 1 || num_sms > kMost) {
    throw UserError(fmt::format("num_sms is {}, need 1 to {}", num_sms, kMost));
  }
  return target == "cuda" ? static_cast<int>(num_sms) : 0;
}

// What an operator of the catalog is predicted to run fastest as on GPUs: the config by name, its
// milliseconds, and its program or those of a sequence, each with its tables.
nb::tuple chosen_operator(const std::string& name, int ranks, std::int64_t m, std::int64_t n,
                          std::int64_t k, const std::string& dtype,
                          const std::string& machine_name) {
  predict::Machine machine = predict::find_machine(machine_name);
  OpShape shape = shape_of(ranks, m, n, k, dtype);
  operator_named(name);
  OpCandidates offered = candidates(name, shape, {.sms = machine.num_sms});
  ChooseOptions options{.machine = machine};
  ConfigChoice choice;
  std::vector<std::pair<Program, UsualTables>> programs;
  {
    nb::gil_scoped_release unlocked;
    choice = choose(name, shape, offered, options);
    for (const Candidate& step : steps_of(choice, offered, options)) {
      programs.emplace_back(step.program(), UsualTables{step.tables});
    }
  }
  return nb::make_tuple(choice.config, choice.predicted_ms, programs);
}

// A program of the catalog with its tables; sizes that are 0 are the operator's defaults, and on GPUs
// without sizes those of a large layer.
std::pair<Program, UsualTables> catalog_program(const std::string& name, int ranks, std::int64_t m, std::int64_t n,
                        std::int64_t k, const std::string& dtype, const std::string& on,
                        std::int64_t num_sms) {
  const OperatorInfo& op = operator_named(name);
  OpShape shape = shape_of(ranks, m, n, k, dtype);
  shape.target = target(sms_of(on, num_sms));
  return {op.program(shape), {op.tables ? op.tables(shape) : predict::LaunchTables{}}};
}

// The program of a file; sizes that are 0 are the file's own.
Program program_of_file(const ProgramFile& file, int ranks, std::int64_t m, std::int64_t n,
                        std::int64_t k, const std::string& dtype, const std::string& on,
                        std::int64_t num_sms, const std::map<std::string, std::int64_t>& sizes) {
  OpShape shape = shape_of(ranks, m, n, k, dtype);
  return file.program({.world_size = shape.world_size,
                       .m = shape.m,
                       .n = shape.n,
                       .k = shape.k,
                       .sizes = sizes,
                       .dtype = shape.dtype,
                       .num_sms = sms_of(on, num_sms)});
}

// Python keeps an extension's symbols to itself; program files look for the language among the
// global ones.
void make_language_global() {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&make_language_global), &self) == 0 ||
      dlopen(self.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) == nullptr) {
    throw InternalError("stretto: the extension module cannot share its symbols");
  }
}

// `with_kernel`: compiles that for the GPU beside the proof, where there is a driver that loads it.
Compiled* compile(const Program& p, const ProveOptions& options, bool with_kernel) {
  if (!with_kernel || !cuda::has_driver()) return new Compiled(prove(lower(p), options));
  SlowNotice notice(fmt::format("compiling the kernel of '{}', kept for later runs", p.name));
  ProvedForGpu made = prove_for_gpu(lower(p), options, {.target = options.gpu});
  return new Compiled(std::move(made.program), std::move(made.code));
}

void bind_catalog(nb::module_& m) {
  m.def("operators", [] {
    std::vector<std::string> names;
    for (const OperatorInfo& op : catalog()) names.emplace_back(op.name);
    return names;
  });
  m.def("catalog_program", &catalog_program);
  m.def("chosen_operator", &chosen_operator);
}

}  // namespace

void bind_programs(nb::module_& m) {
  nb::class_<UsualTables>(m, "UsualTables").def(nb::init<>());
  nb::class_<Compiled>(m, "Compiled")
      .def_prop_ro("program", [](const Compiled& c) { return c.proved().program(); })
      .def_prop_ro("num_sms", [](const Compiled& c) { return c.proved().scope().sms; })  // of the GPU
      // Needs no GPU. Seconds; the kernel is in the cache then.
      .def("compile_for_gpu", [](const Compiled& c) {
        nb::gil_scoped_release unlocked;
        const KernelOptions options{.target = {.sms = c.proved().scope().sms}};
        return generate(c.proved().lowered(), options).image.compile_seconds;
      });
  nb::class_<Program>(m, "Program")
      .def_static(
          "parse",
          [](const std::string& text, const std::string& name) { return parse(text, name); },
          nb::arg("text"), nb::arg("name") = "text")
      .def_ro("name", &Program::name)
      .def_ro("world_size", &Program::world_size)
      .def_prop_ro("tensors", &tensors)
      .def_prop_ro("extents", &extents)
      .def(
          "compile",
          [](const Program& p, bool bounds_only, int num_sms, const std::string& waiver,
             bool with_kernel) {
            nb::gil_scoped_release unlocked;
            const ProveOptions options{
                .bounds_only = bounds_only, .gpu = {.sms = num_sms}, .waiver = waiver};
            return compile(p, options, with_kernel);
          },
          nb::arg("bounds_only") = false, nb::arg("num_sms") = GpuTarget{}.sms,
          nb::arg("waiver") = "", nb::arg("with_kernel") = false)
      .def("prove",
           [](const Program& p) {
             nb::gil_scoped_release unlocked;
             SlowNotice notice(fmt::format("proving '{}'", p.name));
             ProofResult result =
                 prove(lower(p).program(), {.time_limit = env_proof_limit()});
             if (result.rejected()) throw Rejected(result.report);
             return result.report;
           })
      .def("explain", &explain, nb::arg("after") = "", nb::arg("emit") = "tile-ir")
      .def("predict", &predict_program, nb::arg("machine") = "h200x4",
           nb::arg("extents") = std::vector<std::int64_t>{}, nb::arg("eager") = false,
           nb::arg("usual") = UsualTables{});
  nb::class_<ProgramFile>(m, "ProgramFile")
      .def("__init__",
           [](ProgramFile* self, const std::string& file, const std::string& include_dir) {
             make_language_global();
             new (self) ProgramFile(file, include_dir);
           })
      .def("program", &program_of_file);
  bind_catalog(m);
  // Each of these takes the number of the GPU's SMs, 0 for CPU ranks, and the fields of a Desc by
  // name.
  bind_collectives(m);
  bind_products(m);
  bind_attention(m);
  bind_experts(m);
}

}  // namespace stretto::python
