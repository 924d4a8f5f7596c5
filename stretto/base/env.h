// Every environment variable that the libraries read, in one place (docs/guide/errors.md lists them
// for users).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>

namespace stretto {

// STRETTO_TIMEOUT_MS: how long any wait may last before it becomes a Fault. Default 10 s.
std::chrono::milliseconds env_timeout();

// STRETTO_PROOF_LIMIT_S: how long a proof may take before it counts as not complete, on the clock.
// Default 600 s.
std::chrono::seconds env_proof_limit();

// STRETTO_CACHE_DIR: where proofs and choices are kept. Default $XDG_CACHE_HOME/stretto or
// ~/.cache/stretto, where those are absolute, else in the temporary folder.
std::filesystem::path env_cache_dir();

// STRETTO_CACHE_MB: how much compiled kernels may take there, in bytes. Default 2048 MB.
std::uint64_t env_cache_bytes();

// STRETTO_NVRTC: the library that compiles GPU kernels; empty where it is to be searched for
// (runtime/cuda/nvrtc.h).
std::filesystem::path env_nvrtc();

}  // namespace stretto
