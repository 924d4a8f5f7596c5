"""Program files that take their sizes from the command line, and that do the work of an operator. Usage:
cli_files_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository."""

import json

import cli_case
from cli_case import DATA, ROOT, run, CliCase

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


class SizesTest(CliCase):
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

    def test_proves_the_shape_that_is_asked(self):
        done = self.good("prove", PROGRAM, "--ranks", "2..3", *SIZES, "--target", "cuda", "--dtype", "bfloat16")
        self.assertEqual(done.stdout.decode().split(" (")[0], "2 programs: 2 proved, 0 rejected")
        self.assertIn("m=104 n=90 k=50 bf16 P=3: proved", done.stderr.decode())
        got = self.json_of("prove", "gemm", "--ranks", 1, *SIZES,
                           keys=["programs", "proved", "rejected", "mutants", "mutants_rejected", "survivors",
                                 "seconds"])
        self.assertEqual((got["programs"], got["proved"]), (1, 1))
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

    def test_bad_use(self):
        self.refused(*self.bench(PROGRAM, "--like", "no_such"), says="no_such")
        self.refused(*self.bench("ag_gemm", "--like", "ag_gemm"), says="is an operator itself")
        self.refused(*self.bench(PROGRAM, "--like", "gemm_rs"), says=["'a' is float32", "gemm_rs"])
        done = run("bench", PROGRAM, "--like", "ag_gemm", "--device", "cuda", "--ranks", 2)
        self.assertIn(done.returncode, (0, 4), done.stderr.decode())


if __name__ == "__main__":
    cli_case.main(__doc__)
