# shellcheck shell=bash
# Sourced by the programs of this folder: builds what they measure and installs what they compare it with.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

bench_options=()  # cmake's, for programs that measure more than the library

# Replaces the shell by a Python program of this folder: bench PROGRAM [ARGUMENT]...
bench() {
  install_packages "${build_packages[@]}"
  quietly build-bench build_preset release -S "$root" -DHEADWISE_BUILD_TESTS=OFF -DHEADWISE_BUILD_BENCH=ON \
    "${bench_options[@]}"
  make_venv
  quietly bench-install "$venv/bin/pip" install -q -r "$root/bench/requirements.txt"
  HEADWISE_BUILD=$build/release exec "$venv/bin/python" "$root/bench/$1" "${@:2}"
}
