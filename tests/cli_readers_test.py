"""compile and predict: what two readers of a program say on the command line. Usage: cli_readers_test.py
PATH_OF_STRETTO [unittest arguments], from the root of the repository."""

import json
import shutil

import cli_case
from cli_case import ROOT, DATA, run, CliCase

COMPILE_KEYS = ["kernels", "failed", "spills", "warnings", "failures", "seconds"]


class CompileTest(CliCase):
    """GPU kernels are made without a GPU; what is compiled needs NVRTC."""

    def need_nvrtc(self):
        done = run("compile", "broadcast", "--ranks", 1)
        if done.returncode == 4:
            self.skipTest(done.stderr.decode().strip())

    def test_operators_compile_cleanly(self):
        self.need_nvrtc()
        for op in ("ag_gemm", "all_reduce_packet", "attention"):
            got = self.json_of("compile", op, "--target", "sm_90a", "--ranks", "2..3",
                               keys=COMPILE_KEYS)
            self.assertGreaterEqual(got["kernels"], 6)
            self.assertEqual((got["failed"], got["spills"], got["warnings"], got["failures"]),
                             (0, 0, 0, []))
        got = self.json_of("compile", "gemm", "--ranks", 1, "--m", 33, "--n", 44, "--k", 55, "--dtype",
                           "float16", keys=COMPILE_KEYS)
        self.assertEqual(got["kernels"], 1)
        progress = self.good("compile", "rms_norm", "--ranks", 2).stderr.decode()
        self.assertRegex(progress, r"^(rms_norm .*P=2: good \(.* s\)\n)+$")

    def test_parts_are_all_kernels_together(self):
        self.need_nvrtc()
        labels = lambda *part: sorted(line.split(": good")[0] for line in self.good(
            "compile", "broadcast", "--ranks", "2..3", *part).stderr.decode().splitlines())
        whole, parts = labels(), [labels("--part", f"{i}/3") for i in (1, 2, 3)]
        self.assertEqual(sorted(parts[0] + parts[1] + parts[2]), whole)
        self.assertLess(max(map(len, parts)), len(whole))
        for part in ("0/2", "3/2", "1/0", "1", "1/2x", "-1/2", "a/b"):
            self.refused("compile", "broadcast", f"--part={part}", says=["I/N"])

    def test_program_files(self):
        self.need_nvrtc()
        got = self.json_of("compile", DATA / "kept_wait.cc", "--ranks", 2, keys=COMPILE_KEYS)
        self.assertEqual((got["kernels"], got["failed"]), (1, 0))
        file = self.tmp / "atomics.cc"
        file.write_text('#include "stretto/lang/program_builder.h"\n'
                        "using namespace stretto;\n"
                        "Program stretto_program(int world_size) {\n"
                        '  ProgramBuilder p("atomics", world_size);\n'
                        '  auto y = p.state("y", DType::kF32, {1, 64});\n'
                        '  p.role("add", Resource::sms(1), p.range(1), [&](const Tile&) {\n'
                        "    p.reduce_store(y.tile({0, 0}, 1, 64), p.zeros(DType::kF32, 1, 64));\n"
                        "  });\n  return p.finish();\n}\n")
        done = run("compile", file, "--ranks", 2, "--json")
        self.assertEqual(done.returncode, 2, done.stderr.decode())
        got = json.loads(done.stdout)
        self.assertEqual((got["kernels"], got["failed"]), (1, 1))
        for words in ("atomics.cc:7", "role 'add'", "order of arrival"):
            self.assertIn(words, got["failures"][0])

    def test_what_no_gpu_holds(self):
        """The shape asks for it, so it is no bug."""
        self.need_nvrtc()
        done = run("compile", "sequence_attention", "--ranks", 2, "--k", 4096, "--dtype", "float32")
        self.assertEqual(done.returncode, 2, done.stderr.decode())
        self.assertIn("bytes of shared memory", done.stderr.decode())

    def test_emits_text(self):
        text = self.good("explain", "ag_gemm", "--ranks", 2, "--emit", "cuda").stdout.decode()
        for words in ("__global__", "// role 'gather'", "// producer", "tma_load_3d(", "dot_async<"):
            self.assertIn(words, text)
        self.need_nvrtc()
        text = self.good("explain", DATA / "kept_wait.cc", "--emit", "ptx").stdout.decode()
        self.assertIn(".target sm_90a", text)

    def test_every_config_of_the_chooser(self):
        self.need_nvrtc()
        shape = ("--ranks", 2, "--m", 64, "--n", 256, "--dtype", "bf16")
        one = self.json_of("compile", "all_reduce_packet", *shape, keys=COMPILE_KEYS)
        all_of_them = self.json_of("compile", "all_reduce_packet", *shape, "--candidates", keys=COMPILE_KEYS)
        self.assertEqual(one["kernels"], 1)
        self.assertGreater(all_of_them["kernels"], 1)
        self.assertEqual(all_of_them["failed"], 0, all_of_them)
        self.refused("compile", DATA / "kept_wait.cc", "--candidates", says=["kept_wait.cc", "--candidates"])

    def test_bad_use(self):
        self.refused("compile", says="--all")
        self.refused("compile", "no_such_operator", says=["no_such_operator", "ag_gemm"])
        self.refused("compile", "gemm", "--target", "sm_80", says="--target")
        self.refused("compile", "gemm", "--ranks", "9..1", says="--ranks")
        self.refused("compile", "gemm", "--dtype", "float33", says="float33")
        self.refused("compile", "gemm", env={"STRETTO_CACHE_MB": "0"}, says="STRETTO_CACHE_MB")
        self.refused("compile", "gemm", env={"STRETTO_NVRTC": "/nowhere/libnvrtc.so"}, code=4,
                     says=["/nowhere/libnvrtc.so"], lines=None)


class PredictTest(CliCase):
    """No GPU is needed; times are the business of the unit tests."""

    KEYS = ["time_ms", "exposed_comm_ms", "bound_by", "config", "machine", "floors_ms", "roles"]
    KEYS_OF_STEPS = [*KEYS, "sequence_ms"]

    def test_operator(self):
        got = self.json_of("predict", "ag_gemm_push", "--machine", "h200x4", "--ranks", 4, "--m", 8192,
                           "--n", 22016, "--k", 4096, "--dtype", "bf16", keys=self.KEYS_OF_STEPS)
        self.assertGreater(got["sequence_ms"], got["time_ms"])  # many rows: worth fusing
        self.assertEqual(got["machine"], "h200x4")
        self.assertGreater(got["exposed_comm_ms"], 0)
        self.assertLess(got["exposed_comm_ms"], got["time_ms"])
        self.assertGreaterEqual(got["time_ms"], max(got["floors_ms"].values()))
        self.assertEqual([r["name"] for r in got["roles"]], ["push", "gemm"])
        for part in ("ag_gemm_push", "m=8192", "bf16", "P=4", "gemm on", "gather=push"):
            self.assertIn(part, got["config"])

    KEYS_OF_MODELS = ["time_ms", "tokens_per_second", "memory_bytes", "bound_by", "machine", "memory", "programs"]

    def test_step_of_a_model(self):
        """A config.json is enough; a step of more rows takes longer, and ranks share the memory."""
        shutil.copy(ROOT / "checkpoints/debian-qwen3moe-18m/config.json", self.tmp)

        def ask(*options):
            return self.json_of("predict", "--model", self.tmp, "--machine", "h200x4", *options,
                                keys=self.KEYS_OF_MODELS)
        few, many, two = ask("--batch", 2, "--context", 200), ask("--batch", 64, "--context", 200), ask(
            "--batch", 64, "--context", 200, "--tp", 2)
        self.assertGreater(many["time_ms"], few["time_ms"])
        self.assertAlmostEqual(many["tokens_per_second"], 64 / many["time_ms"] * 1e3, delta=1)
        self.assertEqual(many["memory_bytes"], sum(many["memory"].values()))
        self.assertLess(two["memory"]["cache"], many["memory"]["cache"])
        self.assertIn(many["bound_by"], ("compute", "memory", "links", "launch"))
        self.assertAlmostEqual(sum(p["time_ms"] for p in few["programs"]), few["time_ms"], places=6)
        fp8 = ask("--batch", 64, "--context", 200, "--kv-dtype", "fp8")
        self.assertLess(fp8["memory"]["cache"], 0.55 * many["memory"]["cache"])
        prompt = ask("--batch", 2, "--context", 200, "--prompt", 100)
        self.assertGreater(prompt["time_ms"], few["time_ms"])
        plan = self.tmp / "plan.txt"
        text = self.good("predict", "--model", self.tmp, "--plan", plan).stdout.decode()
        self.assertIn("bound by", text)
        self.assertIn('section "body"', plan.read_text())

    def test_step_of_a_model_refused(self):
        model = ROOT / "checkpoints/debian-llama-8m"
        self.refused("predict", "--model", model, "--context", 10**6, says=["1000000 tokens", "positions"])
        self.refused("predict", "--model", model, "--batch", 0, says="--batch")
        self.refused("predict", "--model", model, "--kv-dtype", "int3", says=["--kv-dtype", "int3", "fp8"])
        self.refused("predict", "--model", model, "--tp", 8, says=["8 GPUs", "h200x4"])
        self.refused("predict", "--model", model, "--ep", 2, says="experts")
        self.refused("predict", "--model", self.tmp / "none", says="none")
        self.refused("predict", "gemm", "--model", model, says="--model", lines=None)
        self.refused("predict", "gemm", "--batch", 2, says="--model", lines=None)
        self.refused("predict", says=["program", "--model"], lines=None)

    def test_the_chosen_config_is_at_least_as_fast_as_the_default(self):
        sizes = ("--ranks", 2, "--m", 512, "--n", 4096, "--machine", "h200x2")
        for op in ("gemm", "ag_gemm", "gemm_rs", "gemm_ar", "all_gather", "all_reduce_two_shot"):
            shape = (*sizes, *(("--k", 2048) if "gemm" in op else ()))
            env = {"STRETTO_CACHE_DIR": str(self.tmp / "cache")}
            keys = self.KEYS_OF_STEPS if op.startswith(("ag_gemm", "gemm_")) else self.KEYS
            chosen = self.json_of("predict", op, *shape, keys=keys, env=env)
            default = self.json_of("predict", op, *shape, "--default-config", keys=self.KEYS, env=env)
            self.assertIn("tile", chosen["config"])
            # gemm_rs and gemm_ar: the catalog's default adds a residual.
            self.assertLessEqual(chosen["time_ms"], default["time_ms"] * 1.0001, op)
            kept = list((self.tmp / "cache/choices").glob("*.json"))
            again = self.json_of("predict", op, *shape, keys=keys, env=env)
            self.assertEqual(again, chosen)
            self.assertEqual(list((self.tmp / "cache/choices").glob("*.json")), kept)
            kept[0].write_text("{")  # a damaged one is chosen anew
        self.assertEqual(len(kept), 6 + 3)  # and three sequences
        self.assertEqual(self.json_of("predict", op, *shape, keys=self.KEYS, env=env), chosen)

    def test_text_and_timeline(self):
        out = self.tmp / "predicted.json"
        text = self.good("predict", ROOT / "examples/02_ag_gemm.cc", "--ranks", 2,
                         "-o", out).stdout.decode()
        self.assertRegex(text, r"ms of it exposed communication, bound by \w+\n")
        self.assertRegex(text, r"(?m)^gather +x 1 +\|.{72}\|$")
        events = json.loads(out.read_text())["traceEvents"]
        lanes = {e["args"]["name"] for e in events if e.get("name") == "thread_name"}
        self.assertTrue({"gather/0", "gemm/0", "gemm/1"} <= lanes, lanes)
        starts = [e for e in events if e["ph"] == "s"]
        self.assertGreater(len(starts), 0)

    def test_machine_file(self):
        machine = json.loads((ROOT / "stretto/predict/machines/h200x2.json").read_text())
        file = self.tmp / "mine.json"
        times = []
        for gbs in (4300, 430):
            machine["name"] = "mine"
            machine["memory"]["hbm_gbs"] = gbs
            file.write_text(json.dumps(machine))
            got = self.json_of("predict", "gemm", "--machine", file, "--m", 8, "--n", 16384, "--k", 8192,
                               keys=self.KEYS)
            self.assertEqual(got["machine"], "mine")
            times.append(got["time_ms"])
        self.assertGreater(times[1], 3 * times[0])
        machine["memory"]["hbm_gbs"] = "much"
        file.write_text(json.dumps(machine))
        self.refused("predict", "gemm", "--machine", file, says=["mine.json", "hbm_gbs"])
        file.write_text("{")
        self.refused("predict", "gemm", "--machine", file, says=["mine.json"])

    def test_says_the_sizes_that_were_asked(self):
        def config(*sizes):
            return self.json_of("predict", "rms_norm", *sizes, keys=self.KEYS)["config"].split(" |")[0]

        self.assertEqual(config(), "rms_norm bf16 P=1")
        self.assertEqual(config("--m", 8), "rms_norm m=8 bf16 P=1")
        self.assertEqual(config("--m", 8, "--n", 64), "rms_norm m=8 n=64 bf16 P=1")

    def test_says_where_more_rows_are_predicted_than_were_asked(self):
        def config(*command):
            return json.loads(self.good(*command, "--json").stdout)["config"]

        says = "m=256 is the next after 255 that programs are made for"
        for more in ([], ["--default-config"], ["--target", "cpu"]):
            shape = ["predict", "gemm_rs", "--ranks", 2, *more, "--m"]
            self.assertIn(says, config(*shape, 255))
            self.assertNotIn("the next", config(*shape, 256))
        self.assertNotIn("the next", config("predict", "gemm_rs", "--m", 255, "--extent", "m=250"))
        shape = ["bench", "gemm_rs", "--samples", 1, "--n", 16, "--k", 16, "--m"]
        self.assertIn(says, config(*shape, 255))
        self.assertNotIn("the next", config(*shape, 256))

    def test_extents(self):
        times = [self.json_of("predict", "gemm", "--m", 4096, "--n", 4096, "--k", 4096, "--extent",
                              f"m={m}", keys=self.KEYS)["time_ms"] for m in (128, 4096)]
        self.assertGreater(times[1], 2 * times[0])

    def test_bad_use(self):
        self.refused("predict", "gemm", "--machine", "h300", says=["h300", "h200x4"])
        self.refused("predict", "gemm", "--machine", "h200x2", "--ranks", 4, says=["h200x2", "4 GPUs"])
        self.refused("predict", "no_such_operator", says=["no_such_operator"])
        self.refused("predict", "gemm", "--dtype", "float33", says="float33")
        for op in ("gemm", "all_reduce_one_shot"):
            for more in ([], ["--default-config"]):
                self.refused("predict", op, "--ranks", 2, "--dtype", "float64", *more,
                             says=["is float64", "CPU ranks compute with and GPUs do not"])
        self.refused("predict", "gemm", "--extent", "x=1", says="x=1")
        self.refused("predict", "gemm", "--extent", "m", says="NAME=VALUE")
        self.refused("predict", "gemm", "--extent", "m=99999999", says="m")
        for value in ("99999999999999999999", "-99999999999999999999", "1.5", "0x10", ""):
            self.refused("predict", "gemm", "--extent", f"m={value}", says=["--extent", f"m={value}"])
        self.refused("predict", "ag_gemm", "--machine", "h200x2", "--ranks", 3, says=["ag_gemm: needs 3"])
        self.refused("predict", "gemm", "-o", self.tmp / "no/such/x.json", says="x.json")
        # A launch that would wait for ever is refused, not simulated for ever.
        text = self.good("explain", DATA / "kept_wait.cc", "--emit", "schedule-ir").stdout.decode()
        stuck = self.tmp / "stuck.ir"
        stuck.write_text(text.replace(">= 1", ">= 2", 1))
        self.assertNotEqual(stuck.read_text(), text)
        self.refused("predict", stuck, code=1, says=["never ends", ">= 2", "stays at 1"])


class WarmTest(CliCase):
    """What is made ahead is what a run looks for."""

    SHAPE = ("--m", 37, "--n", 24, "--k", 40, "--ranks", 2, "--dtype", "float32")

    def kept(self):
        return sorted(str(file) for file in (self.tmp / "cache").rglob("*") if file.is_file())

    def test_a_run_proves_nothing_then(self):
        env = {"STRETTO_CACHE_DIR": str(self.tmp / "cache")}
        done = self.good("warm", "--ops", "ag_gemm,gemm_rs", *self.SHAPE, env=env)
        self.assertRegex(done.stdout.decode(), r"^2 programs proved \(.* s\)\n$")
        progress = done.stderr.decode().splitlines()
        self.assertEqual([line[:7] for line in progress], ["1 of 2:", "2 of 2:"])
        warmed = self.kept()
        self.assertGreaterEqual(len(warmed), 2)
        for op in ("ag_gemm", "gemm_rs"):
            self.good("trace", op, *self.SHAPE, "-o", self.tmp / "trace.json", env=env)
        self.assertEqual(self.kept(), warmed)
        self.good("trace", "gemm_ar", *self.SHAPE, "-o", self.tmp / "trace.json", env=env)
        self.assertGreater(len(self.kept()), len(warmed))

    def test_world_sizes_and_json(self):
        got = self.json_of("warm", "--ops", "all_gather", "--m", 16, "--n", 32, "--ranks", "1..3",
                           keys=["programs", "target", "seconds"])
        self.assertEqual((got["programs"], got["target"]), (3, "cpu"))

    def test_what_is_no_operator(self):
        self.refused("warm", "--ops", "gemm,gem", says=("'gem'",))
        self.refused("warm", says=("--ops", "--model"))
        for nowhere in ("/proc/none", f"{cli_case.__file__}/cache"):
            self.refused("warm", "--ops", "gemm", env={"STRETTO_CACHE_DIR": nowhere}, says=("nothing can be kept",))
        self.refused("warm", "--ops", "gemm", "--model", cli_case.MODEL, says=("not both",))


if __name__ == "__main__":
    cli_case.main(__doc__)
