#!/usr/bin/env bash
# Build the images of the Dockerfile into dist/images/{operator,runtime}.tar, with Docker where there is an engine
# and with buildah (root, Debian, no registry) elsewhere. Nothing is rebuilt whose inputs have not changed.
#
# Usage: images.sh [operator] [runtime]       default: both
# Environment: RUNTIME_LOCK, RUNTIME_PACKAGES  the runtime's contents; default: JAX and Ray, see docs/images.md
#              BASE_IMAGE                      an image to build on; default: python:3.12-slim, or made by mmdebstrap
#              PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_TRUSTED_HOST, PIP_DEFAULT_TIMEOUT, *_proxy   passed to pip
set -euo pipefail
cd "$(dirname "$0")/.."

OUT=dist/images
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/tpu-operator/images
CACHE_LIMIT_MB=12000
RUNTIME_LOCK=${RUNTIME_LOCK:-requirements/runtime.lock}
RUNTIME_PACKAGES=${RUNTIME_PACKAGES-}
SUITE=bookworm
# shellcheck disable=SC2054  # the commas are mmdebstrap's
DEBOOTSTRAP=(
  --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr
  --include=usr-is-merged,python3,python3-venv,ca-certificates
  '--aptopt=APT::Install-Recommends "false"'
  '--dpkgopt=path-exclude=/usr/share/doc/*' '--dpkgopt=path-exclude=/usr/share/man/*'
  '--dpkgopt=path-exclude=/usr/share/locale/*' '--dpkgopt=path-exclude=/usr/lib/*/gconv/*'
)

say() { printf '[images %3ds] %s\n' "$SECONDS" "$*"; }
die() { printf 'images: %s\n' "$*" >&2; exit 1; }

has_docker() { command -v docker >/dev/null && docker info >/dev/null 2>&1; }

# --- buildah, without a registry
store() { buildah --root "$CACHE/storage" --runroot "$CACHE/run" --storage-driver "${STORAGE_DRIVER:-overlay}" "$@"; }

require_packages() {
  local missing=()
  for tool in buildah mmdebstrap; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    die "no Docker engine, and these Debian packages are missing: ${missing[*]}. Install them, or start Docker."
  fi
  say "installing ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

base_image() { # prints the name of the base image, made once per definition and user
  local name tarball container
  name=localhost/tpu-base:$(printf '%s\n' "$SUITE" "${DEBOOTSTRAP[@]}" | sha256sum | cut -c1-12)
  if ! store images --quiet "$name" >/dev/null 2>&1; then
    say "making the base image: Debian $SUITE with Python (about a minute, once)" >&2
    tarball=$(mktemp --suffix=.tar)
    mmdebstrap --quiet "${DEBOOTSTRAP[@]}" "$SUITE" "$tarball" >"$OUT/base.log" 2>&1 || { tail -30 "$OUT/base.log" >&2; die "mmdebstrap failed, see $OUT/base.log"; }
    container=$(store from scratch)
    store add --quiet "$container" "$tarball" / >/dev/null
    store config --cmd bash "$container"
    store commit --quiet --rm "$container" "$name" >/dev/null
    rm "$tarball"
  fi
  echo "$name"
}

trim_cache() { # old layers are only good for speed: past the limit all go
  local used
  used=$(du -sm "$CACHE/storage" | cut -f1)
  [ "$used" -le "$CACHE_LIMIT_MB" ] && return
  say "the layer cache holds $used MB, more than $CACHE_LIMIT_MB: emptying it"
  store rmi --all --force >/dev/null
}

# --- either tool
build_args() {
  printf -- '--build-arg\n%s\n' "RUNTIME_LOCK=$RUNTIME_LOCK" "RUNTIME_PACKAGES=$RUNTIME_PACKAGES"
  for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT http_proxy https_proxy no_proxy; do
    [ -z "${!name-}" ] || printf -- '--build-arg\n%s\n' "$name=${!name}"
  done
}

build_with_docker() { # TARGET IMAGE TAR
  [ -z "${BASE_IMAGE-}" ] || set -- "$@" --build-arg "BASE_IMAGE=$BASE_IMAGE"
  docker build --target "$1" --tag "$2" "${ARGS[@]}" "${@:4}" . && docker save --output "$3" "$2"
}

# For each RUN buildah copies itself to memory and seals the copy; the kernel refuses the seal (EBUSY) when it happens to
# hold one of those pages at the moment. That alone is worth another try, which goes on from the layers already built.
build_with_buildah() { # TARGET IMAGE TAR
  local tries=5
  until bud_with_buildah "$1" "$2" 2>"$3.stderr"; do
    cat "$3.stderr"
    grep -q 'sealing memfd copy: Device or resource busy' "$3.stderr" && [ $((tries -= 1)) -gt 0 ] || return 1
  done
  store push --quiet "$2" "docker-archive:$3:$2"
}

bud_with_buildah() { # TARGET IMAGE
  store bud --layers --isolation chroot --pull-never --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --target "$1" --tag "$2" --build-arg "BASE_IMAGE=$BUILD_BASE" "${ARGS[@]}" .
}

inputs() { # one hash over all that decides what an image holds
  local files=(Dockerfile .dockerignore pyproject.toml README.md LICENSE requirements/build.lock)
  case $1 in
    operator) files+=(requirements/operator.lock operator runtime) ;;
    runtime) files+=("$RUNTIME_LOCK" runtime) ;;
  esac
  { find "${files[@]}" -type f ! -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum
    printf '%s\n' "${BASE_IMAGE-}" "$RUNTIME_LOCK" "$RUNTIME_PACKAGES" "$SUITE" "${DEBOOTSTRAP[@]}"
  } | sha256sum | cut -d' ' -f1
}

build() { # TARGET
  local image=localhost/tpu-$1:dev tar=$OUT/$1.tar stamp=$OUT/$1.inputs log=$OUT/$1.log hash
  hash=$(inputs "$1")
  if [ -f "$tar" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then
    say "$1: unchanged ($tar, $(du -m "$tar" | cut -f1) MB)"
    return
  fi
  prepare
  say "$1: building with $BUILDER, log in $log"
  rm -f "$tar" "$stamp"
  "build_with_$BUILDER" "$1" "$image" "$tar" 2>&1 | tee "$log" | sed -un 's/^\(\[[0-9/]*\] \)\?STEP [0-9\/]*: \(RUN .\{1,90\}\).*/  \2/p' ||
    { tail -40 "$log" >&2; die "building $1 failed, see $log"; }
  echo "$hash" >"$stamp"
  say "$1: $image in $tar, $(du -m "$tar" | cut -f1) MB"
}

prepare() { # what only a build needs, once
  [ -z "${BUILDER-}" ] || return 0
  mapfile -t ARGS < <(build_args)
  BUILDER=docker
  has_docker && return
  BUILDER=buildah
  require_packages
  mkdir -p "$CACHE/storage"
  trim_cache
  BUILD_BASE=${BASE_IMAGE:-$(base_image)}
}

mkdir -p "$OUT"
[ $# -gt 0 ] || set -- operator runtime
for target in "$@"; do
  case $target in
    operator | runtime) build "$target" ;;
    *) die "unknown image '$target', expected: operator, runtime" ;;
  esac
done
