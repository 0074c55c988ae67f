#!/bin/sh
# One night for a scheduler: runs `auditkit nightly` and tells its end to whoever looks.
#
#   usage: sh tools/nightly.sh AUDITKIT [OPTIONS OF auditkit nightly]
#
# A mirror that is busy tonight (exit code 5) is a warning and ends with 0. Any other failure keeps its own exit code: 3 for a
# mismatch, and 9 where nights have gone by without a full match. On GitHub the result becomes the job's summary, and the end
# an annotation.
set -u
program=${1:?usage: tools/nightly.sh AUDITKIT [OPTIONS]}
shift

text=$("$program" nightly "$@")
code=$?

# The runner obeys lines that begin with two colons; the result may quote a publisher's words.
if [ -n "${GITHUB_ACTIONS:-}" ]; then
    pause=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    printf '::stop-commands::%s\n%s\n::%s::\n' "$pause" "$text" "$pause"
else
    printf '%s\n' "$text"
fi
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    printf '%s\n' "$text" | sed 's/^/    /' >>"$GITHUB_STEP_SUMMARY"
fi

tell() { # tell warning|error TEXT
    if [ -n "${GITHUB_ACTIONS:-}" ]; then
        printf '::%s title=nightly::%s\n' "$1" "$2"
    else
        printf '%s: %s\n' "$1" "$2" >&2
    fi
}

case $code in
0) ;;
3) tell error 'MISMATCH: a step was computed twice here, and differs from what was published; the evidence is kept' ;;
5)
    tell warning 'UNAVAILABLE: something could not be reached tonight; this fails when it has lasted for some nights'
    exit 0
    ;;
7) tell error 'MACHINE_FAULT: this machine calculates wrongly; that says nothing about the publisher' ;;
9) tell error 'INCOMPLETE: not all was verified, and it has been so for some nights or nothing is known of earlier ones' ;;
*) tell error "the night ended with exit code $code" ;;
esac
exit "$code"
