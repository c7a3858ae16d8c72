#!/usr/bin/env bash
# Prints the folder of xgrammar's C++ core (include/, lib/libxgrammar.a), fetching and building it first where it is not
# there yet.
#
# Its source is a Python package, so pip fetches it, from whatever index or mirror pip is set up for, and refuses it
# unless its SHA-256 is the one below; xgrammar.patch adds what quire needs to end work that takes too long. The result
# is kept in QUIRE_CACHE (default: quire in the user's cache folder), one for each patch and version of g++; a file in it
# remembers from what it was built. All builds of quire share it, those with sanitizers and with clang too: it is not
# instrumented.
set -euo pipefail

version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
needed_kilobytes=$((250 * 1024))  # the source, its objects, and a virtual environment where there is no pip
# Its own flags have -flto, whose objects no other compiler can link, and -Werror, which newer compilers trip over.
flags='-fno-lto -Wno-error'
patch=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/xgrammar.patch

compiler=g++
say() { printf 'quire: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}
command -v "$compiler" >/dev/null || fail "building xgrammar takes $compiler, which is not here"
patch_sha256=$(sha256sum <"$patch")

cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-${HOME:?neither QUIRE_CACHE nor HOME is set}/.cache}/quire}
prefix=$cache/xgrammar-$version-${patch_sha256:0:8}-$("$compiler" -dumpmachine)-g++$("$compiler" -dumpversion)
built_from=$prefix/built_from
recipe="$sha256 ${patch_sha256%% *} $flags"
work=  # the temporary folder, once there is one

in_place() { [[ -f $prefix/lib/libxgrammar.a && -f $built_from && $(<"$built_from") == "$recipe" ]]; }

check_room() {
  local available
  available=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
  if ((available < needed_kilobytes)); then
    fail "building xgrammar takes $((needed_kilobytes / 1024)) MB in $cache, which has $((available / 1024)) MB left"
  fi
}

# The command that runs pip, in the array `pip`: the system's, or that of a virtual environment of our own.
find_pip() {
  command -v python3 >/dev/null || fail "fetching xgrammar takes python3, which is not here"
  pip=(python3 -m pip)
  if "${pip[@]}" --version >/dev/null 2>&1; then return; fi
  python3 -m venv "$work/venv" >"$work/log" 2>&1 ||
    fail "fetching xgrammar takes pip, or venv to make one: $(tail -n 1 "$work/log")"
  pip=("$work/venv/bin/python" -m pip)
}

# With the hash in the requirement pip looks at nothing inside the package before it has checked it.
download() {
  local pip=()
  find_pip
  printf 'xgrammar==%s --hash=sha256:%s\n' "$version" "$sha256" >"$work/requirement"
  if ! "${pip[@]}" --disable-pip-version-check --no-input --no-cache-dir --retries 2 download --no-deps \
    --no-binary xgrammar --dest "$work" --requirement "$work/requirement" >"$work/log" 2>&1; then
    local reason
    reason=$(grep '^ERROR' "$work/log" | head -n 1 || true)
    fail "xgrammar $version could not be fetched (${reason:-pip failed: $(tail -n 1 "$work/log")}); check the network"
  fi
  [[ $(sha256sum <"$work/xgrammar-$version.tar.gz") == "$sha256 "* ]] ||
    fail "what was fetched is not xgrammar $version: its SHA-256 is wrong; it was thrown away"
}

# The package's own configuration would ask for the Python bindings, whatever the command line says.
build() {
  local source=$work/xgrammar-$version
  tar -xzf "$work/xgrammar-$version.tar.gz" -C "$work"
  patch --quiet --strip=1 --directory="$source" <"$patch" >"$work/log" 2>&1 ||
    fail "xgrammar.patch does not fit xgrammar $version: $(tail -n 1 "$work/log")"
  mkdir "$work/build"
  echo 'set(XGRAMMAR_BUILD_PYTHON_BINDINGS OFF)' >"$work/build/config.cmake"
  {
    cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$compiler" \
      -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_INSTALL_PREFIX="$work/prefix" -DCMAKE_INSTALL_LIBDIR=lib &&
      cmake --build "$work/build" &&
      cmake --install "$work/build" &&
      cp "$source/LICENSE" "$source/NOTICE" "$work/prefix"
  } </dev/null >"$work/log" 2>&1 ||
    fail "xgrammar could not be built: $(grep -m 1 -i error "$work/log" || tail -n 1 "$work/log")"
}

fetch_and_build() {
  command -v patch >/dev/null || fail "building xgrammar takes patch, which is not here"
  check_room
  work=$(mktemp -d "$cache/xgrammar.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  say "fetching and building xgrammar $version into $cache, which takes some minutes"
  download
  build
  echo "$recipe" >"$work/prefix/built_from"
  rm -rf "$prefix"
  mv "$work/prefix" "$prefix"
}

# One process at a time; the others wait and then find the library in place.
build_alone() {
  mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] ||
    fail "cannot write to the cache folder $cache; QUIRE_CACHE names another"
  exec {lock}>"$cache/xgrammar.lock"
  flock --nonblock "$lock" || {
    say "waiting for another process that builds xgrammar"
    flock "$lock"
  }
  in_place || fetch_and_build
}

in_place || build_alone
printf '%s\n' "$prefix"
