# The Debian 12 packages that stretto builds and tests with, one per line with its reason. Sourced by tools/build.
STRETTO_PACKAGES=(
  g++                    # the compiler: C++20
  cmake ninja-build      # the build
  libfmt-dev             # formatting
  libspdlog-dev          # logging
  nlohmann-json3-dev     # JSON
  libcli11-dev           # command line
  libgtest-dev           # tests
  libbenchmark-dev       # benchmarks
  libopenblas-dev        # CPU matrix kernels (docs/decisions/0002-cpu-matrix-kernels.md), and a baseline
  libdnnl-dev            # CPU matrix kernels of bf16 where the processor has them, and a baseline
  libxsmm-dev            # baseline of the CPU matrix benchmark
  libonig-dev            # regular expressions of tokenizers, the library Hugging Face uses
  libutf8proc-dev        # Unicode normalisation of tokenizers
  libboost-dev           # Beast and Asio: HTTP of the server
  libboost-context-dev   # threads of the simulated GPU (docs/simulated_gpu.md)
)
STRETTO_CHECK_PACKAGES=(
  clang libclang-rt-14-dev  # libFuzzer targets
  python3                   # tools/lint
  python3-venv python3-dev  # the environment of the Python package's tests, and what extensions are compiled with
)
# Packages of PyPI in that environment, build/python.
STRETTO_PYTHON_PACKAGES=(
  nanobind scikit-build-core  # the extension module
  numpy ml_dtypes             # arrays, those of bfloat16 too
  pytest                      # its tests
)
# Only where NVRTC is missing and python3 has no pip of its own: tools/build fetches NVRTC's wheel with it.
STRETTO_NVRTC_PACKAGES=(
  python3-pip               # the package nvidia-cuda-nvrtc
)
