#!/usr/bin/env bash
# Resolve requirements/*.lock: exact versions with hashes, for every platform. Usage: lock.sh UV [--upgrade]
set -euo pipefail
uv=$1; shift
compile() { "$uv" pip compile --quiet --universal --generate-hashes --no-annotate --no-header --no-emit-index-url "$@"; }
compile "$@" --python-version 3.11 pyproject.toml --group dev -o requirements/dev.lock
compile "$@" --python-version 3.11 pyproject.toml -o requirements/operator.lock
compile "$@" --python-version 3.11 requirements/runtime.in -o requirements/runtime.lock
compile "$@" --python-version 3.11 requirements/runtime-torchtpu.in -o requirements/runtime-torchtpu.lock
compile "$@" --python-version 3.11 requirements/runtime-torchtpu-cpu.in -o requirements/runtime-torchtpu-cpu.lock
compile "$@" --python-version 3.11 requirements/rl.in -o requirements/rl.lock
compile "$@" --python-version 3.11 requirements/systems.in -o requirements/systems.lock
compile "$@" --python-version 3.11 requirements/docs.in -o requirements/docs.lock
compile "$@" --python-version 3.11 requirements/build.in -o requirements/build.lock
