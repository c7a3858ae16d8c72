#!/usr/bin/env bash
# Installs the packages that are missing: `cmake/setup.sh build` for building quire, `cmake/setup.sh test` for
# testing it too. With everything in place it asks dpkg once and does nothing.
set -euo pipefail
exec </dev/null >&2  # never waits for an answer; standard output stays the caller's

build_packages=(g++ cmake ninja-build libgtest-dev nlohmann-json3-dev libcli11-dev libpcre2-dev
  libutf8proc-dev libboost-dev libssl-dev ca-certificates pkg-config git patch python3 python3-venv)
test_packages=(clang)
browser_packages=(chromium chromium-driver)  # for the tests of the page, which are skipped without them

missing_of() {
  local installed
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qxF "$package installed" <<<"$installed" || echo "$package"
  done
}

install() {
  local missing as_root=()
  mapfile -t missing < <(missing_of "$@")
  ((${#missing[@]})) || return 0
  if [[ $(id -u) != 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: these packages are missing, and installing them takes root: ${missing[*]}"
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "setup: installing ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q -y)
  "${apt[@]}" update || echo "setup: apt-get update failed; trying with the package lists at hand"
  "${apt[@]}" install --no-install-recommends "${missing[@]}"
}

case ${1:-} in
  build) packages=("${build_packages[@]}") ;;
  test) packages=("${build_packages[@]}" "${test_packages[@]}") ;;
  *)
    echo "usage: cmake/setup.sh build|test"
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
  echo "setup: no dpkg here; quire needs what Debian calls ${packages[*]}"
  exit 0
fi
install "${packages[@]}"

# The sanitizers' runtime is a package of its own, named after the version of clang. Ubuntu has Chromium only as a snap.
if [[ $1 == test ]]; then
  if apt-cache show "${browser_packages[@]}" >/dev/null 2>&1; then install "${browser_packages[@]}"; fi
  version=$(clang --version | sed -n 's/.*clang version \([0-9]*\).*/\1/p')
  install "libclang-rt-$version-dev"
fi
