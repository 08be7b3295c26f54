#!/usr/bin/env bash
# The steps of .github/workflows/release.yml, in the root of the tree: steps.sh check | build | try. GITHUB_REF_NAME is the tag.
set -euo pipefail

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' python/shardproof/__init__.py)

check() {  # the tag is that of this version, and the changelog has an entry, which becomes the release's text
  if [[ $GITHUB_REF_NAME != "v$version" ]]; then
    echo "the tag is $GITHUB_REF_NAME, and python/shardproof/__init__.py has the version $version; tag v$version" >&2
    exit 2
  fi
  mkdir -p dist
  awk -v heading="## $version - " 'index($0, "## ") == 1 {inside = index($0, heading) == 1; next} inside' \
    CHANGELOG.md >dist/notes.md
  if [[ ! -s dist/notes.md ]]; then
    echo "CHANGELOG.md has no entry '## $version - DATE'; write it before the tag" >&2
    exit 2
  fi
}

build() {
  ./shardproof package --out dist  # this installs what both need
  python3 -B python/program/light_wheel.py dist
}

try() {  # the wheel of the Python package, in a fresh environment
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  python3 -m venv "$folder/env"
  "$folder/env/bin/python" -m pip install --quiet --no-index --no-deps dist/shardproof-"$version"-*.whl
  (cd "$folder" && PATH=$folder/env/bin shardproof version) | tee "$folder/said"
  grep -qx "shardproof $version (without LibTorch)" "$folder/said"
}

"$1"
