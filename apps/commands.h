// The commands of `stretto`, one function each that adds the subcommand and what runs when it is
// chosen. Results go to stdout (one JSON object with --json), everything else to stderr; errors are
// thrown.
#pragma once

namespace CLI {
class App;
}

namespace stretto {

// A command whose processes have failed and said why themselves.
struct CommandFailed {
  int exit_code = 1;
};
inline constexpr int kExitNotComplete = 5;  // of proofs: docs/guide/errors.md

void add_generate_command(CLI::App& app);
void add_serve_command(CLI::App& app);
void add_load_command(CLI::App& app);
void add_score_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_prove_command(CLI::App& app);
void add_explain_command(CLI::App& app);
void add_compile_command(CLI::App& app);
void add_warm_command(CLI::App& app);
void add_predict_command(CLI::App& app);
void add_calibrate_command(CLI::App& app);
void add_trace_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_launch_command(CLI::App& app);

}  // namespace stretto
