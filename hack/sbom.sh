#!/usr/bin/env bash
# Write what is in each image as CycloneDX to dist/sbom/, from the locks that the images are built from, with their hashes.
# Usage: sbom.sh [BIN]     BIN has cyclonedx-py; default: .venv/bin
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-.venv/bin}
mkdir -p dist/sbom
for lock in operator runtime runtime-torchtpu; do
  "$bin/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
    --output-format JSON --output-file "dist/sbom/$lock.cdx.json" "requirements/$lock.lock"
  printf 'dist/sbom/%s.cdx.json\n' "$lock"
done
