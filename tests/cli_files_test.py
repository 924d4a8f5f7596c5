"""What is proved from the command line, and program files: those that take their sizes from there, and those that
do the work of an operator. Usage: cli_files_test.py PATH_OF_STRETTO [unittest arguments], from the root of the
repository."""

import json
import os
import pathlib
import shutil
import subprocess

import cli_case
from cli_case import DATA, MODEL, ROOT, run, CliCase

PROVE_KEYS = ["programs", "proved", "proved_at_fixed_sizes", "not_complete", "rejected", "results", "mutants",
              "mutants_rejected", "mutants_not_complete", "survivors", "seconds"]
RESULT_KEYS = ["label", "verdict", "missing", "cases", "events", "seconds"]
PROGRAM = ROOT / "examples/demo_ag_gemm/ag_gemm.cc"
SIZES = ["--m", 104, "--n", 90, "--k", 50]
TELLS_SHAPE = """#include <stdexcept>
#include "stretto/lang/program_builder.h"
#include "stretto/lang/program_shape.h"
stretto::Program stretto_program(const stretto::ProgramShape& s) {
  std::string told = "m";
  for (auto x : {s.m, s.n, s.k, std::int64_t{s.num_sms}}) told += " " + std::to_string(x);
  throw std::runtime_error(told + " " + stretto::name(s.dtype));
}
"""
NAMED_SIZES = """#include "stretto/lang/program_builder.h"
#include "stretto/lang/program_shape.h"
stretto::Program stretto_program(const stretto::ProgramShape& shape) {
  using namespace stretto;
  ProgramBuilder p("named", shape.world_size);
  const std::int64_t tokens = shape.size("tokens", 24), heads = shape.size("heads", 2);
  const std::int64_t m = shape.size("m", 1);
  FloatScalar alpha = p.float_scalar("alpha");
  TensorRef in = p.input("in", shape.dtype, {tokens * m, heads});
  TensorRef out = p.output("out", shape.dtype, {tokens * m, heads});
  p.role("scale", Resource::sms(2), p.grid(in, 8, 2), [&](const Tile& t) {
    Value v = cast(p.load(in.tile({t.row, t.col}, 8, 2)), DType::kF32);
    p.store(out.tile({t.row, t.col}, 8, 2), cast(v * p.splat(alpha), shape.dtype));
  });
  return p.finish();
}
"""

# Each number of tiles that wait is a matter of its own.
MANY_SIZES = """#include "stretto/lang/program_builder.h"
stretto::Program stretto_program(int world_size) {
  using namespace stretto;
  constexpr std::int64_t kBound = 1 << 20, kRows = 256;
  ProgramBuilder p("rows", world_size);
  Index m = p.extent("m", kBound);
  TensorRef in = p.input("in", DType::kF32, {m, 4}), out = p.output("out", DType::kF32, {m, 4});
  SignalRef ready = p.signal("ready", 1);
  Index tiles = kBound / kRows;
  p.role("tell", Resource::sms(1), p.range(tiles), [&](const Tile&) { p.notify(ready[0], p.rank()); });
  p.role("copy", Resource::sms(2), p.range(tiles), [&](const Tile& t) {
    p.wait(ready[0], 1 + m * m / (t.index + 1) % 3);
    p.store(out.tile({t.index * kRows, 0}, kRows, 4), p.load(in.tile({t.index * kRows, 0}, kRows, 4)));
  });
  return p.finish();
}
"""

TWO_TABLES = """#include "stretto/lang/program_builder.h"
stretto::Program stretto_program(int world_size) {
  using namespace stretto;
  ProgramBuilder p("halves", world_size);
  TensorRef out = p.output("out", DType::kF32, {8, 8});
  for (int half : {0, 1}) {
    auto begins = p.table(half ? "right" : "left", {3}, {ContractKind::kPartition, 0, 9});
    p.role(half ? "fill_right" : "fill_left", Resource::sms(1), p.range(2), [&](const Tile& t) {
      Slice rows = out.tile({p.read(begins, {t.index}), half * 4}, 8, 4);
      p.store(rows.until_row(p.read(begins, {t.index + 1})), p.zeros(DType::kF32, 8, 4));
    });
  }
  return p.finish();
}
"""

WIDE_TILE = """#include "stretto/lang/program_builder.h"
stretto::Program stretto_program(int world_size) {
  using namespace stretto;
  ProgramBuilder p("wide", world_size);
  TensorRef in = p.input("in", DType::kF32, {64, 32000}), out = p.output("out", DType::kF32, {64, 32000});
  p.role("copy", Resource::sms(1), p.range(1), [&](const Tile&) {
    p.store(out.tile({0, 0}, 64, 32000), p.load(in.tile({0, 0}, 64, 32000)));
  });
  return p.finish();
}
"""


class ProveTest(CliCase):
    def test_operator(self):
        got = self.json_of("prove", "ag_gemm", "--ranks", "2..3", keys=PROVE_KEYS)
        self.assertGreater(got["programs"], 1)
        self.assertEqual((got["proved"], got["rejected"]), (got["programs"], 0))
        self.assertEqual((got["mutants"], got["survivors"]), (0, []))
        progress = self.good("prove", "ag_gemm", "--ranks", 2, "--json").stderr.decode()
        self.assertRegex(progress, r"^(ag_gemm .*P=2.*: proved \(.* s\)\n)+$")
        same = self.json_of("prove", "ag_gemm", keys=PROVE_KEYS, env={"STRETTO_PROVE_RANKS": "2"})
        self.assertLess(same["programs"], got["programs"])

    def test_deleted_wait_is_rejected_at_both_lines(self):
        source = (DATA / "broken_wait.cc").read_text().splitlines()
        put = next(i for i, line in enumerate(source, 1) if "p.put_signal" in line)
        load = next(i for i, line in enumerate(source, 1) if "inbox.tile" in line and "load" in line)
        done = run("prove", DATA / "broken_wait.cc", "--ranks", "2..3", "--json")
        self.assertEqual(done.returncode, 1, done.stderr.decode())
        got = json.loads(done.stdout)
        self.assertEqual(sorted(got), sorted(PROVE_KEYS))
        self.assertEqual((got["programs"], got["proved"], got["rejected"]), (2, 0, 2))
        for line in (put, load):
            self.assertIn(f"broken_wait.cc:{line}", done.stderr.decode())
        self.refused("bench", DATA / "broken_wait.cc", code=1, lines=None, says="broken_wait.cc")

    def test_what_is_rejected_does_not_run(self):
        text = self.refused("bench", DATA / "broken_wait.cc", code=1, says="nothing orders them", lines=None)
        self.assertEqual(text.count("rejected"), 1, text)

    def test_kept_wait_is_proved_and_runs(self):
        kept = DATA / "kept_wait.cc"
        got = self.json_of("prove", kept, "--ranks", "1..3", keys=PROVE_KEYS)
        self.assertEqual(got["proved"], 3)
        out = self.tmp / "timeline.json"
        self.good("trace", kept, "--ranks", 3, "-o", out)
        self.assertTrue(json.loads(out.read_text())["traceEvents"])
        mutated = self.json_of("prove", kept, "--ranks", "2", "--mutants", keys=PROVE_KEYS)
        self.assertGreater(mutated["mutants"], 0)
        judged = mutated["mutants_rejected"] + mutated["mutants_not_complete"] + len(mutated["survivors"])
        self.assertEqual(mutated["mutants"], judged)

    def test_what_is_not_shown_is_not_called_proved(self):
        file = self.tmp / "program.cc"
        for text, what in ((MANY_SIZES, "sizes"), (TWO_TABLES, "tables")):
            file.write_text(text)
            done = run("prove", file, "--ranks", 1, "--json")
            self.assertEqual(done.returncode, 5, done.stderr.decode())
            self.assertIn(f"P=1: not complete (", done.stderr.decode())
            self.assertIn(f"    not shown: {what}: ", done.stderr.decode())
            got = json.loads(done.stdout)
            self.assertEqual(sorted(got), sorted(PROVE_KEYS))
            self.assertEqual((got["proved"], got["not_complete"], got["rejected"]), (0, 1, 0))
            one = got["results"][0]
            self.assertEqual(sorted(one), sorted(RESULT_KEYS))
            self.assertEqual(one["verdict"], "not complete")
            self.assertEqual([m["what"] for m in one["missing"]], [what])
            self.assertEqual(sorted(one["missing"][0]), ["expression", "what", "where"])
            self.assertTrue(all(one["missing"][0].values()), one["missing"])

    def test_proves_for_gpus_only_what_compiles_for_them(self):
        file = self.tmp / "wide.cc"
        file.write_text(WIDE_TILE)
        self.good("prove", file, "--ranks", 1)
        compiled = run("compile", file, "--ranks", 1).stderr.decode()
        self.assertIn("32000", compiled)
        self.refused("prove", file, "--ranks", 1, "--target", "cuda", says="32000", lines=None)

    def test_ir_text_goes_round(self):
        for emit in ("tile-ir", "schedule-ir"):
            text = self.good("explain", "gemm_rs", "--ranks", 3, "--emit", emit).stdout
            file = self.tmp / f"{emit}.ir"
            file.write_bytes(text)
            got = self.json_of("prove", file, keys=PROVE_KEYS)
            self.assertEqual((got["programs"], got["proved"]), (1, 1))
            again = self.good("explain", file, "--emit", emit).stdout
            self.assertEqual(again, text)

    def test_bad_program_files(self):
        def refuse(name, text, *says, lines=1):
            file = self.tmp / name
            file.write_text(text)
            return self.refused("prove", file, "--ranks", "2", says=[name, *says], lines=lines)

        refuse("junk.ir", "progrm x", ":1:1")
        refuse("empty.ir", "")
        cpp = (DATA / "kept_wait.cc").read_text()
        for name in ("program", "program.txt", "program.c", "program.h", "program.ir"):
            refuse(name, cpp, "text form", ".cc")  # C++ that does not say so
        self.assertNotIn(".cc", refuse("junk2.ir", "progrm x"))
        refuse("nothing.cc", "int x;\n", "stretto_program")
        refuse("wrong.cc", "int x = y;\n", "does not compile", "wrong.cc:1", lines=None)
        refuse("throws.cc", '#include "stretto/lang/program_builder.h"\n#include <stdexcept>\n'
               "stretto::Program stretto_program(int) { throw std::runtime_error(\"out of ideas\"); }\n",
               "out of ideas")
        refuse("misused.cc", '#include "stretto/lang/program_builder.h"\n'
               "stretto::Program stretto_program(int world_size) {\n"
               '  stretto::ProgramBuilder p("misused", world_size);\n'
               '  p.input("a", stretto::DType::kF32, {4, 4}); p.signal("s", -3);\n'
               "  return p.finish();\n}\n", "misused.cc:4")
        self.refused("prove", self.tmp, says=str(self.tmp))
        self.refused("prove", "no_such_operator", says=["no_such_operator", "ag_gemm"])
        refuse("odd.cc", '#include "stretto/lang/program_builder.h"\n'
               "stretto::Program stretto_program(int) { throw 5; }\n", "stretto_program(2)")
        refuse("forgets.cc", '#include "stretto/lang/program_builder.h"\n'
               "stretto::Program stretto_program(int world_size) {\n"
               '  stretto::ProgramBuilder p("forgets", world_size);\n}\n', "forgets.cc:4", "return",
               lines=None)
        self.refused("prove", DATA / "kept_wait.cc", env={"TMPDIR": "/proc/nowhere"}, says="TMPDIR")
        self.refused("prove", DATA / "kept_wait.cc", env={"CXX": "/no/such/compiler"},
                     says="/no/such/compiler")

    def test_caches_that_are_of_no_use(self):
        """Compiled files are not kept there, or made again where what is kept is damaged."""
        file, cache = DATA / "kept_wait.cc", self.tmp / "cache"
        done = self.good("prove", file, "--ranks", 2, env={"STRETTO_CACHE_DIR": "/proc/nowhere"})
        self.assertIn("/proc/nowhere/programs", done.stderr.decode())
        self.good("prove", file, "--ranks", 2, env={"STRETTO_CACHE_DIR": str(cache)})
        kept, = (cache / "programs").iterdir()
        whole = kept.read_bytes()
        for damaged in (b"", b"\0" * 1000, b"no library"):
            kept.write_bytes(damaged)
            done = self.good("prove", file, "--ranks", 2, env={"STRETTO_CACHE_DIR": str(cache)})
            self.assertNotIn("programs", done.stderr.decode())
            self.assertEqual(kept.read_bytes()[:4], whole[:4])
        kept.unlink()
        kept.mkdir()
        self.good("prove", file, "--ranks", 2, env={"STRETTO_CACHE_DIR": str(cache)})
        self.assertEqual([p.name for p in (cache / "programs").iterdir()], [kept.name])

    def test_headers_of_a_program_are_not_forgotten(self):
        file, header = self.tmp / "program.cc", self.tmp / "wait.h"
        file.write_text((DATA / "broken_wait.cc").read_text().replace(
            "// The wait", '#include "wait.h"\n    // The wait'))
        header.write_text("p.wait(sent, left);\n")
        self.good("prove", file, "--ranks", 2)
        header.write_text("\n")
        self.assertEqual(run("prove", file, "--ranks", 2).returncode, 1)

    def test_bad_ranks(self):
        for ranks in ("0", "65", "3..2", "a..b", "1..", "", "-1", "1..99999999999"):
            self.refused("prove", "gemm", "--ranks=" + ranks, says="--ranks")
        self.refused("prove", says="--all")


class SizesTest(CliCase):
    def test_sizes_that_an_operator_has_not(self):
        for command in ("predict", "explain", "prove", "bench"):
            self.refused(command, "rms_norm", "--k", 64, says=["--k: rms_norm has no such size", "[m, n]"])
        self.good("predict", "rms_norm", "--m", 16, "--k", 0)

    def test_what_is_asked_reaches_the_file(self):
        file = self.tmp / "tells.cc"
        file.write_text(TELLS_SHAPE)
        sizes = ["--ranks", 2, "--m", 4, "--n", 5, "--k", 6]
        self.refused("bench", file, *sizes, says="stretto_program(2): m 4 5 6 0 float32")
        self.refused("bench", file, "--ranks", 3, says="stretto_program(3): m 0 0 0 0 float32")
        self.refused("bench", file, *sizes, "--dtype", "float16", says="m 4 5 6 0 float16")
        self.refused("explain", file, *sizes, "--emit", "cuda", says="m 4 5 6 132 float32")
        for command in (["predict"], ["prove", "--target", "cuda", "--dtype", "bfloat16"]):
            self.refused(*command, file, *sizes, says="m 4 5 6 132 bfloat16")

    def test_files_with_sizes_of_their_own_refuse_others(self):
        text = self.tmp / "program.ir"
        text.write_bytes(self.good("explain", DATA / "kept_wait.cc", "--ranks", 2).stdout)
        for file in (DATA / "kept_wait.cc", text):
            for command in ("prove", "bench", "predict", "explain"):
                ranks = ["--ranks", 2]
                self.refused(command, file, *ranks, "--k", 64, says=[file.name, "sizes of its own"])

    def test_sizes_that_the_file_names(self):
        file = self.tmp / "named.cc"
        file.write_text(NAMED_SIZES)
        told = ["--size", "tokens=40", "--size", "heads=6", "--m", 3]
        got = self.good("explain", *told, file, "--ranks", 1).stdout.decode()
        self.assertIn("input @in : f32[120, 6]", got)
        self.assertIn("scalar %alpha f32", got)
        self.assertIn("input @in : f32[24, 2]", self.good("explain", file, "--size", "heads=0").stdout.decode())
        got = self.good("explain", file, "--size", "m=2").stdout.decode()
        self.assertIn("input @in : f32[48, 2]", got)
        done = self.good("prove", file, *told, "--ranks", "1..2")
        self.assertIn("m=3 heads=6 tokens=40 f32 P=2: proved", done.stderr.decode())
        self.good("predict", file, *told, "--extent", "alpha=-0.5")
        self.good("bench", file, *told, "--samples", 1)
        text = self.tmp / "named.ir"
        text.write_bytes(self.good("explain", file).stdout)
        self.good("prove", text)
        for command in ("explain", "prove", "predict", "bench"):
            self.refused(command, file, "--size", "token=4", says=["no size 'token'", "heads, m, tokens"])
            self.refused(command, PROGRAM, "--size", "token=4", says=["no size 'token'", "none by name"])
            self.refused(command, text, "--size", "tokens=4", says="sizes of its own")
            self.refused(command, "gemm", "--size", "tokens=4", says=["--size", "--m, --n and --k"])
            for wrong in ("tokens", "tokens=", "=4", "tokens=4x", "tokens=-1", "tokens=99999999999"):
                self.refused(command, file, "--size", wrong, says=[f"--size '{wrong}'", "NAME=VALUE"])
        self.refused("predict", file, "--extent", "alpha=half", says="--extent 'alpha=half'")
        self.refused("prove", "--all", "--size", "tokens=4", says="one program")

    def test_proves_the_shape_that_is_asked(self):
        done = self.good("prove", PROGRAM, "--ranks", "2..3", *SIZES, "--target", "cuda", "--dtype", "bfloat16")
        self.assertEqual(done.stdout.decode().split(" (")[0], "2 programs: 2 proved, 0 not complete, 0 rejected")
        self.assertIn("m=104 n=90 k=50 bf16 P=3: proved", done.stderr.decode())
        got = self.json_of("prove", "gemm", "--ranks", 1, *SIZES,
                           keys=PROVE_KEYS)
        self.assertEqual((got["programs"], got["proved"]), (1, 1))
        got = self.good("prove", "gemm", "--ranks", 1, "--dtype", "float16")
        self.assertEqual(got.stderr.decode().split(" (")[0], "gemm f16 P=1: proved")
        self.refused("prove", "gemm", "--dtype", "float33", says="float33")
        self.refused("prove", "--all", *SIZES, says="one program")
        self.refused("prove", PROGRAM, "--mutants", "--target", "cuda", says="--mutants")


class LikeTest(CliCase):
    def bench(self, file, *more):
        return ["bench", file, "--ranks", 3, "--samples", 2, *SIZES, *more]

    def test_results_are_checked(self):
        for dtype in ("float32", "bfloat16"):
            args = self.bench(PROGRAM, "--like", "ag_gemm", "--dtype", dtype)
            self.assertTrue(json.loads(self.good(*args, "--json").stdout)["checked"])
        self.assertIn(b"results checked by the reference of ag_gemm\n", self.good(*args).stdout)
        self.assertNotIn("checked", json.loads(self.good(*self.bench(PROGRAM, "--json")).stdout))

    def test_wrong_results_are_an_error(self):
        wrong = self.tmp / "wrong.cc"  # proved, but leaves the last step of the sum out
        text = PROGRAM.read_text()
        self.assertIn("p.loop(ceil_div(k, bk)", text)
        wrong.write_text(text.replace("p.loop(ceil_div(k, bk)", "p.loop(ceil_div(k - 1, bk) * (k - 2) / k"))
        self.good("prove", wrong, "--ranks", 3, *SIZES)
        self.refused(*self.bench(wrong, "--like", "ag_gemm"), says=["ag_gemm", "rank"])
        done = run(*self.bench(wrong, "--like", "ag_gemm", "--launcher", "processes"))
        self.assertEqual((done.returncode, done.stdout), (2, b""), done.stderr.decode())
        self.assertIn(b"expected", done.stderr)
        self.assertNotIn(b"fault", done.stderr)  # nobody is left waiting

    def test_bad_use(self):
        self.refused(*self.bench(PROGRAM, "--like", "no_such"), says="no_such")
        self.refused(*self.bench("ag_gemm", "--like", "ag_gemm"), says="is an operator itself")
        self.refused(*self.bench(PROGRAM, "--like", "gemm_rs"), says=["'a' is float32", "gemm_rs"])
        done = run("bench", PROGRAM, "--like", "ag_gemm", "--device", "cuda", "--ranks", 2)
        self.assertIn(done.returncode, (0, 4), done.stderr.decode())


class StreamsTest(CliCase):
    """Standard streams that are full, closed or no text."""

    def test_full_standard_error_changes_no_exit_code(self):
        for args, code in [(["prove", "nosuch"], 2), (["prove", "gemm", "--ranks", 1], 0),
                           (["generate", "--model", MODEL, "--prompt", "x", "--summary", "--max-tokens", 1], 0)]:
            with open("/dev/full", "wb") as full:
                done = subprocess.run([cli_case.STRETTO, *map(str, args)], stdout=subprocess.DEVNULL,
                                      stderr=full, timeout=cli_case.HANGS, cwd=ROOT)
            self.assertEqual(done.returncode, code, args)

    def test_closed_standard_output_of_processes_is_an_error(self):
        """Else a socket of the world has its number, and text goes there."""
        command = [cli_case.STRETTO, "generate", "--model", MODEL, "--prompt", "x", "--tp", "2",
                   "--launcher", "processes", "--max-tokens", "2"]
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE,
                              timeout=cli_case.HANGS, cwd=ROOT)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(b"standard output: cannot be written", done.stderr)

    def test_input_that_cannot_be_read_is_no_text(self):
        folder = os.open(self.tmp, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        done = subprocess.run([cli_case.STRETTO, "tokenize", "--model", MODEL], stdin=folder,
                              capture_output=True, timeout=cli_case.HANGS, cwd=ROOT)
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertIn(b"standard input: cannot be read", done.stderr)

    def test_numbers_that_are_not_there_are_not_zero(self):
        for option in ["--top-p", "--temperature", "--min-p"]:
            self.refused("generate", "--model", MODEL, "--prompt", "x", option, "", says=[option, "need a number"])

    def test_names_that_are_no_utf8(self):
        path = os.path.join(os.fsencode(self.tmp), b"caf\xe9.cc")
        shutil.copy(ROOT / "examples/02_ag_gemm.cc", path)
        done = subprocess.run([cli_case.STRETTO, "predict", path, "--ranks", "2", "--machine", "h200x2", "--json"],
                              capture_output=True, timeout=cli_case.HANGS, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["time_ms"], 0)



class SpecialTokensTest(CliCase):
    def test_special_tokens_as_plain_text(self):
        """What users write becomes no special token where that is asked for."""
        end = json.loads((pathlib.Path(MODEL) / "config.json").read_text())["eos_token_id"]
        args = ["tokenize", "--model", MODEL]
        ids = [self.json_of(*args, *more, stdin=b"a</s>b", keys=["token_ids"])["token_ids"]
               for more in ((), ("--split-special-tokens",))]
        self.assertEqual([end in i for i in ids], [True, False])
        for i in ids:
            self.assertIn("b", self.json_of(*args, "--decode", stdin=json.dumps(i).encode(), keys=["text"])["text"])
        got = [json.loads(self.good("generate", "--model", MODEL, "--prompt", "a</s>b", "--max-tokens", 1, "--json",
                                    *more).stdout)["prompt_token_ids"] for more in ((), ("--split-special-tokens",))]
        self.assertEqual(got, ids)
        document = self.tmp / "document"
        document.write_text("a</s>b")
        scored = [json.loads(self.good("score", "--model", MODEL, "--file", document, "--json", *more).stdout)["tokens"]
                  for more in ((), ("--split-special-tokens",))]
        self.assertEqual(scored, [len(i) for i in ids])


if __name__ == "__main__":
    cli_case.main(__doc__)
