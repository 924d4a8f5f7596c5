// `stretto`: the command line. Exit codes: 0 good, 1 rejected by the proof, 2 user error, 3 fault,
// 4 device, 70 our bug.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <system_error>

#include "apps/commands.h"
#include "apps/cut_short.h"
#include "apps/inherited.h"
#include "apps/whole_numbers.h"
#include "stretto/base/errors.h"
#include "stretto/base/log.h"
#include "stretto/base/say.h"
#include "stretto/proof/verdict.h"

namespace {

// Else the next file that is opened, a socket maybe, becomes what is written to.
void open_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", O_RDONLY) != fd) return;  // for reading: writing is told as before
  }
}

int fail(int code, const std::string& kind, const std::string& what) {
  bool says_it = what.starts_with(kind + ": ");  // a report of the proof
  stretto::say("stretto: {}{}\n", says_it ? "" : kind + ": ", what);
  return code;
}

// One line, like every other error.
std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  return fmt::format("stretto: error: {} ({} --help says more)\n", error.what(), app->get_name());
}

void require_command(const CLI::App& app) {
  if (!app.get_subcommands().empty()) return;
  std::string names;
  for (const CLI::App* command : app.get_subcommands({})) names += " " + command->get_name();
  throw stretto::UserError(fmt::format("no command given; commands:{}", names));
}

std::string unwritable_output(int error) {
  return fmt::format("standard output: cannot be written: {}", std::strerror(error));
}

// A result that did not reach a full disk is not a result.
void flush_output() {
  std::cout.flush();  // what --help and --version print
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout) return;
  throw stretto::UserError(unwritable_output(errno));
}

int run(CLI::App& app, int argc, char** argv) {
  stretto::check_log_level();
  try {
    app.parse(argc, argv);
    require_command(app);
  } catch (const CLI::ParseError& e) {
    std::ostringstream said;
    if (app.exit(e, std::cout, said) != 0) {
      stretto::say("{}", stretto::name_variables(app, argc, argv, said.str()));
      return 2;
    }
  }
  flush_output();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // what grows too large is told like a full disk
  std::signal(SIGCHLD, SIG_DFL);  // who has started this may not want to hear of its children
  stretto::tell_files_cut_short();
  CLI::App app("Overlapped tile programs for LLM computing: prove, run, time and serve them.",
               "stretto");
  app.set_version_flag("--version", STRETTO_VERSION);
  app.require_subcommand(0, 1);
  app.failure_message(usage_error);
  app.footer(
      "Environment: STRETTO_TIMEOUT_MS, STRETTO_CACHE_DIR, STRETTO_LOG (docs/guide/errors.md),\n"
      "and the twins of options in parentheses. What one call is about (program, prompt, file,\n"
      "shape, output) has no twin: inherited silently, it would answer another question.");
  stretto::add_generate_command(app);
  stretto::add_serve_command(app);
  stretto::add_load_command(app);
  stretto::add_score_command(app);
  stretto::add_tokenize_command(app);
  stretto::add_prove_command(app);
  stretto::add_explain_command(app);
  stretto::add_compile_command(app);
  stretto::add_warm_command(app);
  stretto::add_predict_command(app);
  stretto::add_calibrate_command(app);
  stretto::add_trace_command(app);
  stretto::add_bench_command(app);
  stretto::add_launch_command(app);
  stretto::read_whole_numbers(app);
  try {
    return run(app, argc, argv);
  } catch (const stretto::CommandFailed& failed) {
    return failed.exit_code;
  } catch (const stretto::Rejected& e) {
    return fail(1, "rejected", e.what());
  } catch (const stretto::NotComplete& e) {
    return fail(stretto::kExitNotComplete, "not complete", e.what());
  } catch (const stretto::UserError& e) {
    return fail(2, "error", stretto::name_variables(app, argc, argv, e.what()));
  } catch (const stretto::Fault& e) {
    return fail(3, "fault", e.what());
  } catch (const stretto::DeviceError& e) {
    return fail(4, "device", e.what());
  } catch (const std::filesystem::filesystem_error& e) {
    return fail(2, "error", e.what());
  } catch (const std::system_error& e) {  // of fmt::print, too
    if (std::ferror(stdout) != 0) return fail(2, "error", unwritable_output(e.code().value()));
    return fail(70, "internal error, please report it", e.what());
  } catch (const std::bad_alloc&) {
    return fail(2, "error", "not enough memory for this request");
  } catch (const std::exception& e) {
    return fail(70, "internal error, please report it", e.what());
  }
}
