#!/usr/bin/env bash
# Makes sure that the Debian packages of the named groups are there: installs what is missing as root,
# otherwise prints the command and stops. Answers in milliseconds when nothing is missing.
set -euo pipefail

declare -A groups=(
  [build]="g++ cmake ninja-build libcli11-dev libfmt-dev libxxhash-dev nlohmann-json3-dev"
  [test]="libgtest-dev python3 python3-venv pkg-config"
  [bench]="libbenchmark-dev"
  [lint]="clang-format-19 clang-tidy-19 codespell python3"
  [fuzz]="clang-19 libclang-rt-19-dev"
  [ci]="make ccache"
)

wanted=()
for group in "$@"; do
  [[ -v groups[$group] ]] || { echo "packages.sh: no group '$group' (${!groups[*]})" >&2; exit 2; }
  read -ra names <<<"${groups[$group]}"
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null; then
  echo "note: not a Debian system; moxie needs the equivalents of: ${wanted[*]}" >&2
  exit 0
fi

missing=()
for name in "${wanted[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$name")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

if [[ $(id -u) -ne 0 ]]; then
  echo "missing packages; install them and run this again:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
