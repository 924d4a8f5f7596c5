# The Debian 12 packages that stretto builds and tests with, one per line with its reason. Sourced by tools/build and
# tools/empty_root, which shows that nothing else is needed.
STRETTO_PACKAGES=(
  g++                    # the compiler: C++20
  cmake ninja-build      # the build
  libfmt-dev             # formatting
  libspdlog-dev          # logging
  nlohmann-json3-dev     # JSON
  libcli11-dev           # command line
  libgtest-dev           # tests
  libbenchmark-dev       # benchmarks
  libopenblas-dev        # baseline of the CPU matrix benchmarks
  libxsmm-dev            # the same
  libonig-dev            # regular expressions of tokenizers, the library Hugging Face uses
  libutf8proc-dev        # Unicode normalisation of tokenizers
  libboost-dev           # Beast and Asio: HTTP of the server
  libboost-context-dev   # threads of the simulated GPU (docs/internals/simulated_gpus.md)
)
STRETTO_CHECK_PACKAGES=(
  clang libclang-rt-14-dev  # libFuzzer targets
  curl                      # what docs/guide/serving.md asks a server with
  python3                   # tools/lint
  chromium chromium-driver  # the server's page is tested in it
  python3-venv python3-dev  # the environment of the Python package's tests, and what extensions are compiled with
)
# What ./check --long makes an empty root with.
STRETTO_LONG_PACKAGES=(
  debootstrap
)
# Packages of PyPI in that environment, build/python.
STRETTO_PYTHON_PACKAGES=(
  nanobind scikit-build-core  # the extension module
  numpy ml_dtypes             # arrays, those of bfloat16 too
  pytest                      # its tests
  typing_extensions filelock sympy networkx jinja2  # what PyTorch imports, torch.compile too
  transformers psutil         # a Llama to be spread over ranks; how much memory its cache may take
  openai                      # the client that the server is tested with
  selenium                    # drives Chromium
  llguidance jsonschema       # what constrained output is compared with
  schemathesis                # makes requests of the server's description
)
# Installed alone: what else they ask for is 2 GB of CUDA's libraries, in whose place tools/torch_stubs puts empty ones.
# The first asks the second for devices when it is imported; their versions belong together.
STRETTO_TORCH_PACKAGES=(
  'torch==2.15.0'
  'nvidia-cuda-runtime==13.2.*'
)
# Only where NVRTC is missing and python3 has no pip of its own: tools/build fetches NVRTC's wheel with it.
STRETTO_NVRTC_PACKAGES=(
  python3-pip               # the package nvidia-cuda-nvrtc
)

# install_packages PACKAGE...: those that are missing, as root or with sudo.
install_packages() {
  local missing=() package as_root=()
  for package in "$@"; do
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
      missing+=("$package")
    fi
  done
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  echo "== installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
