#!/usr/bin/env bash
# run_ctest.sh BUILD_DIR [ctest arguments]: runs the tests two at a time, says why each skipped test was skipped,
# and ends with ctest's own summary.
set -euo pipefail

build=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Two tests run at a time: threads that wait must sleep, not spin.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

status=0
ctest --test-dir "$build" -j "${CTEST_PARALLEL_LEVEL:-2}" --output-on-failure --no-tests=error "$@" 2>&1 |
  tee "$log" || status=$?

# ctest names skipped tests but not the reason, which is the line that follows the skip in its own log.
reasons=$(awk '/^[0-9]+\/[0-9]+ Testing: /{name=$3} /: Skipped$/{getline; reason[name]=$0} /^skipped: /{reason[name]=substr($0, 10)}
  END {for (name in reason) printf "  %s: %s\n", name, reason[name]}' "$build/Testing/Temporary/LastTest.log" | sort)
if [[ -n $reasons ]]; then
  printf '\nSkipped, and why:\n%s\n' "$reasons"
  echo
  sed -n '/tests passed, /,/^Total Test time/p' "$log"
fi
exit "$status"
