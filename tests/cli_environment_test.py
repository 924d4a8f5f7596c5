"""The environment: whose cache, which compiler, which signals. Usage: cli_environment_test.py PATH_OF_STRETTO
[unittest arguments], from the root of the repository."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import cli_case
from cli_case import DATA, HANGS, MODEL, PROMPT, ROOT, STRETTO, run, CliCase

FILE = DATA / "kept_wait.cc"
PROVE = ["prove", FILE, "--ranks", 2]
OTHER = 4321  # a user that is not this one


# A compiler that compiles once what it is given again. The cache is tested with it, not the compiler.
KEEPS = """#!/bin/sh
before= out= what=
for word in "$@"; do
  if [ "$before" = -o ]; then out=$word; else what="$what$word
"; fi
  before=$word
done
kept=$(dirname "$0")/$(printf %s "$what" | sha256sum | cut -d" " -f1)
if [ ! -e "$kept" ]; then
  c++ "$@" || exit
  (umask 077 && cp "$out" "$kept.$$" && mv "$kept.$$" "$kept")
else
  cp "$kept" "$out"
fi
"""


class CacheFolderTest(CliCase):
    """What lies in the cache is run: nobody else may put it there."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="stretto-compiler-")
        cls.addClassCleanup(folder.cleanup)
        compiler = pathlib.Path(folder.name) / "compiler"
        compiler.write_text(KEEPS)
        compiler.chmod(0o755)
        cls.compiler = {"CXX": str(compiler)}

    def setUp(self):
        super().setUp()
        self.cache = self.tmp / "cache"
        self.env = {"STRETTO_CACHE_DIR": str(self.cache)}

    def prove(self, env=None):
        return self.good(*PROVE, env={**self.compiler, **(env or self.env)})

    def kept(self):
        return sorted(p for p in self.cache.rglob("*") if p.is_file())

    def refuses(self, *says, env=None):
        self.refused(*PROVE, env=env or self.env, says=[*says, "others could put code there"])

    def test_is_made_for_this_user_alone(self):
        for mask in (0o000, 0o022, 0o777):
            with self.subTest(mask):
                before = os.umask(mask)
                try:
                    self.prove()
                finally:
                    os.umask(before)
                self.assertEqual(len(self.kept()), 2)
                for path in [self.cache, *self.cache.rglob("*")]:
                    self.assertEqual(path.stat().st_mode & 0o077, 0, path)
                shutil.rmtree(self.cache)

    def test_folders_that_others_may_write_are_refused(self):
        self.prove()
        for folder in (self.cache, self.cache / "programs"):
            for mode in (0o777, 0o702, 0o1777):
                folder.chmod(mode)
                self.refuses(str(folder), "chmod", "STRETTO_CACHE_DIR")
            folder.chmod(0o700)
        self.tmp.chmod(0o777)  # the way to it
        self.refuses(f"{self.tmp} can be written by other users")
        self.tmp.chmod(0o1777)  # as /tmp
        self.prove()

    @unittest.skipIf(os.geteuid(), "only root gives folders away")
    def test_folders_and_links_of_others_are_refused(self):
        self.prove()
        for path in (self.cache, self.cache / "programs"):
            os.chown(path, OTHER, OTHER)
            self.refuses(str(path), "belongs to user 4321")
            os.chown(path, 0, 0)
        link = self.tmp / "link"
        link.symlink_to(self.cache)
        self.prove({"STRETTO_CACHE_DIR": str(link)})
        os.lchown(link, OTHER, OTHER)
        self.refuses(f"{link} belongs to user 4321", env={"STRETTO_CACHE_DIR": str(link)})

    @unittest.skipIf(os.geteuid(), "only root gives folders away")
    def test_without_home_each_user_has_a_folder(self):
        env = {"HOME": "", "XDG_CACHE_HOME": "", "STRETTO_CACHE_DIR": "", "TMPDIR": str(self.tmp)}
        self.tmp.chmod(0o1777)
        self.prove(env)
        own = self.tmp / f"stretto-cache-{os.geteuid()}"
        self.assertTrue((own / "programs").is_dir())
        os.chown(own, OTHER, OTHER)  # as if that user had been first
        self.refuses(str(own), "belongs to user 4321", env=env)

    def test_what_is_no_full_path_names_no_folder(self):
        """As the XDG specification has it: else every folder in which somebody works would get one."""
        work = self.tmp / "work"
        work.mkdir()
        none = {"STRETTO_CACHE_DIR": "", "TMPDIR": str(self.tmp)}
        for env, kept in (({"XDG_CACHE_HOME": "xdg", "HOME": str(self.tmp)}, ".cache/stretto"),
                          ({"XDG_CACHE_HOME": "../xdg", "HOME": "home"}, f"stretto-cache-{os.geteuid()}"),
                          ({"XDG_CACHE_HOME": "", "HOME": "."}, f"stretto-cache-{os.geteuid()}")):
            with self.subTest(env):
                self.prove_in(work, {**none, **env})
                self.assertEqual(list(work.iterdir()), [])
                self.assertTrue((self.tmp / kept / "programs").is_dir())
                shutil.rmtree(self.tmp / kept)

    def prove_in(self, folder, env, **kwargs):
        done = subprocess.run([STRETTO, *map(str, PROVE)], env={**os.environ, **self.compiler, **env},
                              cwd=folder, timeout=HANGS,
                              stdin=subprocess.DEVNULL, capture_output=True, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_homes_that_are_no_folders(self):
        """Of users that are services."""
        for home in ("/dev/null", "/proc/nowhere", str(FILE)):
            done = self.prove_in("/", {"STRETTO_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": home})
            self.assertIn(b"are not kept", done.stderr)

    @unittest.skipIf(os.geteuid(), "only root mounts")
    def test_folders_from_which_nothing_may_be_run(self):
        self.cache.mkdir(0o700)
        mount = ["mount", "-t", "tmpfs", "-o", "noexec,mode=700", "none", self.cache]
        if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
            self.skipTest("this root may not mount")
        try:
            for _ in range(2):
                self.assertIn(b"not used again", self.prove().stderr)
            done = run(*PROVE, env={**self.env, "TMPDIR": str(self.cache)})
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, b"error: .*noexec, TMPDIR or STRETTO_CACHE_DIR choose another")
        finally:
            subprocess.run(["umount", self.cache], check=True)

    @unittest.skipIf(os.geteuid(), "only root becomes another user")
    def test_another_user_does_not_trust_what_root_has_not_sealed_for_it(self):
        """It may read the folder, and go without."""
        script = f"umask 0; exec {STRETTO} prove {FILE} --ranks 2"
        home = self.tmp / "home"
        home.mkdir()
        os.chown(home, OTHER, OTHER)
        self.tmp.chmod(0o755)
        env = {**os.environ, "HOME": str(home), "STRETTO_CACHE_DIR": str(self.cache)}
        self.prove()
        self.cache.chmod(0o755)
        try:
            done = subprocess.run(["sh", "-c", script], env=env, user=OTHER, group=OTHER, extra_groups=[],
                                  capture_output=True, timeout=HANGS, cwd="/")
        except PermissionError:
            self.skipTest("this root may not become another user")
        if b"Permission denied" in done.stderr and b"not kept" not in done.stderr:
            self.skipTest("the checkout is closed to other users")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"are not kept", done.stderr)

    def test_what_others_have_put_there_is_made_anew(self):
        self.prove()
        key, library = sorted(self.kept(), key=lambda p: p.suffix)
        self.assertEqual((key.name, library.suffix), ("seal.key", ".so"))
        good = library.read_bytes()
        evil = self.tmp / "evil.cc"
        evil.write_text("#include <cstdio>\n#include <cstdlib>\n"
                        "__attribute__((constructor)) void run() { puts(\"EVIL\"); abort(); }\n")
        subprocess.run(["c++", "-shared", "-fPIC", evil, "-o", self.tmp / "evil.so"], check=True)
        evil = (self.tmp / "evil.so").read_bytes()
        for bytes_ in (evil, evil + good[-72:], good[:-1] + bytes([good[-1] ^ 1]), good[:1000]):
            library.write_bytes(bytes_)
            self.assertNotIn(b"EVIL", self.prove().stdout)
            self.assertNotEqual(library.read_bytes(), bytes_)
        library.unlink()
        library.symlink_to(self.tmp / "evil.so")
        self.assertNotIn(b"EVIL", self.prove().stdout)
        key.write_bytes(b"k" * 32)  # of another user: what it sealed is worth nothing
        before = library.read_bytes()
        self.prove()
        self.assertNotEqual(library.read_bytes(), before)

    def test_proofs_and_choices_are_sealed(self):
        args = ["bench", "gemm_ar", "--ranks", 2, "--m", 64, "--n", 64, "--k", 64, "--samples", 2]
        self.good(*args, env=self.env)
        proofs = list((self.cache / "proofs").glob("*.proof"))
        self.assertTrue(proofs)
        for proof in proofs:
            text = proof.read_bytes()
            self.assertIn(b"\nsealed ", text)
            proof.write_bytes(text[:text.index(b"\nsealed ")])
        self.good(*args, env=self.env)
        for proof in proofs:
            self.assertIn(b"\nsealed ", proof.read_bytes())

    def test_two_processes_at_once(self):
        ran = [subprocess.Popen([STRETTO, *map(str, PROVE)], env={**os.environ, **self.env}, cwd=ROOT,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
        for process in ran:
            _, said = process.communicate(timeout=HANGS)
            self.assertEqual(process.returncode, 0, said)
            self.assertNotIn(b"not kept", said)
        self.assertEqual([p.suffix for p in self.kept()], [".so", ".key"])

    @unittest.skipIf(os.geteuid(), "only root mounts")
    def test_a_full_disk_costs_time_only(self):
        self.cache.mkdir(0o700)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "none", self.cache],
                          stderr=subprocess.DEVNULL).returncode:
            self.skipTest("this root may not mount")
        try:
            self.assertIn(b"No space left", self.prove().stderr)
        finally:
            subprocess.run(["umount", self.cache], check=True)

    def test_a_relative_folder(self):
        name = os.path.relpath(self.cache, ROOT)
        self.prove({"STRETTO_CACHE_DIR": name})
        self.assertEqual(len(self.kept()), 2)


class CompilerTest(CliCase):
    def test_names_that_shells_and_decoders_trip_over(self):
        for name in ("a b", "it's", "\"q\"", "$HOME", "-x", "n\n", "\u00e9", os.fsdecode(b"\xff")):
            with self.subTest(repr(name)):
                folder = self.tmp / name
                folder.mkdir()
                shutil.copy(FILE, folder / "p.cc")
                done = run("prove", folder / "p.cc", "--ranks", 2,
                           env={"STRETTO_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder), "LC_ALL": "C"})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(sorted(p.name for p in folder.iterdir()), ["cache", "p.cc"])

    def test_an_empty_compiler_is_none(self):
        for text in ("", " "):
            self.good(*PROVE, env={"CXX": text, "STRETTO_CACHE_DIR": str(self.tmp / "cache")})

    def test_compilers_of_debian_find_the_same(self):
        """On the same lines. In which order arguments are evaluated, and so loads are made, is the compiler's own."""
        found = {}
        for compiler in ("g++", "clang++"):
            if not shutil.which(compiler):
                self.skipTest(f"no {compiler}")
            env = {"CXX": compiler, "STRETTO_CACHE_DIR": str(self.tmp / compiler)}
            done = run("prove", DATA / "broken_wait.cc", "--ranks", 2, env=env)
            self.assertEqual(done.returncode, 1, done.stderr)
            said = re.sub(rb"[0-9.]+ s\b", b"", done.stdout + done.stderr)
            self.assertIn(b"broken_wait.cc:", said)
            lines = []
            for file in [FILE, *sorted((ROOT / "examples").glob("*.cc"))]:
                text = self.good("explain", file, "--ranks", 2, env=env).stdout
                lines.append(sorted(re.findall(rb"loc\(.*\)", text)))
                self.assertGreater(len(lines[-1]), 5)
            found[compiler] = [said, *lines]
        self.assertEqual(found["g++"], found["clang++"])

    def test_what_is_no_compiler_of_this_language_is_told_in_a_line(self):
        old = self.tmp / "old"
        old.write_text("#!/bin/sh\nexec c++ \"$@\" -std=c++14\n")
        old.chmod(0o755)
        for compiler, what in (("/no/such", "not found"), (str(FILE), "ermission denied"), ("true", "makes no file"),
                               ("false", "status 1"), (old, "error: "), ("c++ -no-such", "-no-such"),
                               ("c++ -nostdinc++", "No such file"), ("c++ 'open", "nterminated quoted string")):
            with self.subTest(compiler):
                self.refused(*PROVE, env={"CXX": str(compiler), "STRETTO_CACHE_DIR": str(self.tmp / "cache")},
                             says=[FILE.name, f"'{compiler}'", what, "CXX"])

    @unittest.skipIf(os.geteuid(), "only root becomes another user")
    def test_no_mask_takes_what_is_made_from_who_made_it(self):
        self.tmp.chmod(0o755)
        home = self.tmp / "home"
        home.mkdir()
        os.chown(home, OTHER, OTHER)
        env = {**os.environ, "HOME": str(home), "STRETTO_CACHE_DIR": str(home / "cache"), "TMPDIR": str(home)}
        try:
            done = subprocess.run([STRETTO, *map(str, PROVE)], env=env, user=OTHER, group=OTHER, extra_groups=[],
                                  capture_output=True, timeout=HANGS, cwd="/", umask=0o777)
        except PermissionError:
            self.skipTest("this root may not become another user")
        if not os.access(ROOT, os.X_OK):
            self.skipTest("the checkout is closed to other users")
        self.assertEqual((done.returncode, [p.name for p in home.iterdir()]), (0, ["cache"]), done.stderr)

    @unittest.skipIf(os.geteuid(), "only root mounts")
    def test_a_temporary_folder_without_room(self):
        work = self.tmp / "work"
        work.mkdir()
        for size in ("size=64k", "nr_inodes=3", "nr_inodes=5"):
            if subprocess.run(["mount", "-t", "tmpfs", "-o", f"{size},mode=700", "none", work],
                              stderr=subprocess.DEVNULL).returncode:
                self.skipTest("this root may not mount")
            try:
                self.refused(*PROVE, env={"TMPDIR": str(work), "STRETTO_CACHE_DIR": str(self.tmp / size)}, lines=None,
                             says=[str(work), "no room", "TMPDIR"])
            finally:
                subprocess.run(["umount", work], check=True)

    def test_a_pipe_is_no_program_file(self):
        pipe = self.tmp / "pipe.cc"
        os.mkfifo(pipe)
        self.refused("prove", pipe, "--ranks", 2, says=["pipe.cc", "need a file"])

    def test_headers_of_others_are_not_taken(self):
        """Where /proc does not tell where the command is, and where the compiler's own variables name folders."""
        other = self.tmp / "include/stretto/lang"
        other.mkdir(parents=True)
        (other / "program_builder.h").write_text("#error of another\n")
        work = self.tmp / "work"
        work.mkdir()
        env = {**os.environ, "STRETTO_CACHE_DIR": str(self.tmp / "cache"), "CPATH": str(self.tmp / "include"),
               "CPLUS_INCLUDE_PATH": str(self.tmp / "include")}
        command = [STRETTO, *map(str, PROVE)]
        without = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
        if os.geteuid() == 0 and subprocess.run([*without, "true"], stderr=subprocess.DEVNULL).returncode == 0:
            command = [*without, *command]
        done = subprocess.run(command, env=env, cwd=work, capture_output=True, timeout=HANGS)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_suffix_of_cpp_is_cpp(self):
        for suffix in (".cc", ".cpp", ".cxx", ".c++", ".cp", ".C", ".CPP"):
            file = self.tmp / f"program{suffix}"
            shutil.copy(FILE, file)
            self.good("prove", file, "--ranks", 2)

    def test_carriage_returns_in_a_file(self):
        file = self.tmp / "program.cc"
        file.write_bytes(FILE.read_bytes().replace(b"\n", b"\r\n"))
        self.good("prove", file, "--ranks", 2)

    def test_a_temporary_folder_that_is_none_is_named_with_its_variable(self):
        env = {"STRETTO_CACHE_DIR": str(self.tmp / "cache")}
        for variable in ("TMPDIR", "TMP", "TEMP"):
            clean = {"TMPDIR": "", "TMP": "", "TEMP": "", **env}
            self.refused(*PROVE, env={**clean, variable: "/no/such"}, says=["/no/such", variable])
            self.refused(*PROVE, env={**clean, variable: str(FILE)}, says=[str(FILE), variable])

    def test_a_temporary_folder_whose_entries_others_may_exchange_is_refused(self):
        self.tmp.chmod(0o777)
        self.refused(*PROVE, env={"STRETTO_CACHE_DIR": str(ROOT / "build/none"), "TMPDIR": str(self.tmp)},
                     says=[str(self.tmp), "others could"])


class SignalTest(CliCase):
    """A signal leaves no process and no folder."""

    def running(self, mark):
        found = []
        for process in pathlib.Path("/proc").iterdir():
            try:
                if process.name.isdigit() and mark in (process / "cmdline").read_bytes():
                    found.append(process.name)
            except OSError:
                pass
        return found

    def until(self, condition, what):
        deadline = time.monotonic() + HANGS
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def test_while_a_file_compiles(self):
        args = [STRETTO, *map(str, PROVE)]
        commands = {"alone": args, "launch": [STRETTO, "launch", "-n", "2", "--", *args]}
        for name, command in commands.items():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
                with self.subTest(command=name, signal=number):
                    work = self.tmp / f"{name}{int(number)}"
                    work.mkdir()
                    mark = f"compiler-of-{work}"
                    slow = work.parent / "slow"
                    slow.write_text("#!/bin/sh\nsh -c 'sleep 1000; :' \"$1\" & wait\n")
                    slow.chmod(0o755)
                    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL,
                                               stderr=subprocess.DEVNULL, start_new_session=True,
                                               env={**os.environ, "TMPDIR": str(work), "CXX": f"{slow} {mark}",
                                                    "STRETTO_CACHE_DIR": str(self.tmp / "cache")})
                    self.until(lambda: self.running(mark.encode()), "no compiler")
                    process.send_signal(number)
                    process.wait(timeout=HANGS)
                    self.until(lambda: not self.running(mark.encode()), "a compiler is left")
                    self.until(lambda: not list(work.iterdir()), "a folder is left")

    def test_signals_that_who_starts_it_ignores_or_blocks(self):
        def ignore():
            for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_IGN)

        def block():
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

        generate = ["generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", 2, "--tp", 2, "--launcher",
                    "processes"]
        for prepare in (ignore, block):
            for command in (PROVE, generate):
                with self.subTest(prepare.__name__, command=command[0]):
                    done = subprocess.run([STRETTO, *map(str, command)], preexec_fn=prepare, cwd=ROOT, timeout=120,
                                          env={**os.environ, "STRETTO_CACHE_DIR": str(self.tmp / prepare.__name__)},
                                          stdin=subprocess.DEVNULL, capture_output=True)
                    self.assertEqual((done.returncode, done.stderr.count(b"rror")), (0, 0), done.stderr)

    def test_a_reader_that_goes_ends_all_ranks_without_a_word(self):
        command = [STRETTO, *map(str, ["generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", 8,
                                       "--tp", 3, "--launcher", "processes"])]
        read, write = os.pipe()
        os.close(read)
        process = subprocess.Popen(command, cwd=ROOT, stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        _, said = process.communicate(timeout=HANGS)
        self.assertEqual((process.returncode, said), (128 + signal.SIGPIPE, b""))


class VariableTest(CliCase):
    def test_errors_name_the_variable_that_the_value_is_from(self):
        """Every option of every command that has one, with a value that none takes."""
        lines = self.good("--help").stdout.decode().split("Subcommands:")[1].splitlines()
        commands = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
        seen = 0
        for command in commands:
            for line in self.good(command, "--help").stdout.decode().splitlines():
                if "(Env:STRETTO_" not in line:
                    continue
                variable = line.split("(Env:")[1].split(")")[0]
                if not any(kind in line for kind in (" INT", " UINT", " FLOAT", ":{", " in [")):
                    continue
                done = run(command, env={variable: "\u00e9 none"})
                text = done.stderr.decode()
                option = [word.rstrip(",") for word in line.split() if word.startswith("--")]
                if variable not in text:
                    self.assertFalse(any(word in text for word in option), text)  # of what is missing, not of this
                else:
                    seen += 1
        self.assertGreater(seen, 10)

    def test_what_is_written_is_blamed_itself(self):
        env = {"STRETTO_RANKS": "3"}
        text = self.refused("bench", "gemm", "--ranks", "x", env=env, says="--ranks")
        self.assertNotIn("STRETTO_RANKS", text)
        self.refused("bench", "gemm", env={"STRETTO_RANKS": "x"}, says="STRETTO_RANKS")


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    cli_case.main(__doc__)
