#!/usr/bin/env bash
# Build all that a release is made of into dist/release/: wheel and sources, chart, images, SBOMs, and a sum for each.
# Usage: release.sh UV BIN     UV builds the wheel, BIN has cyclonedx-py
# Environment: that of images.sh; VERSION of the images is the project's
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1
bin=$2
out=dist/release

version() { sed -n "s/^$2 *[:=] *\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" "$1" | head -1; }
die() { printf 'release: %s\n' "$*" >&2; exit 1; }

VERSION=$(version pyproject.toml version)
for field in version appVersion; do
  found=$(version charts/tpu-operator/Chart.yaml $field)
  [ "$found" = "$VERSION" ] || die "charts/tpu-operator/Chart.yaml has $field $found, pyproject.toml has $VERSION: make them the same"
done
grep -q "^## $VERSION" CHANGELOG.md || [ "${SNAPSHOT-}" = 1 ] ||
  die "CHANGELOG.md has no section $VERSION: write it, or set SNAPSHOT=1 to build what is there for a look"

rm -rf "$out"
mkdir -p "$out"
# The same sources give the same wheel.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"$uv" build --quiet --python "$bin/python" --build-constraint requirements/build.lock --require-hashes --out-dir "$out"
helm=$(python3 -m hack.devcluster binaries helm)/helm
"$helm" package charts/tpu-operator --destination "$out" >/dev/null
hack/sbom.sh "$bin" >/dev/null
cp dist/sbom/*.json "$out"
hack/images.sh
for image in operator runtime; do
  ln "dist/images/$image.tar" "$out/tpu-$image-$VERSION.tar" 2>/dev/null || cp "dist/images/$image.tar" "$out/tpu-$image-$VERSION.tar"
done
rm -f "$out/.gitignore"
(cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
