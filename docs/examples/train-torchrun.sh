#!/bin/bash
#
# Train on all GPUs of one machine, or of several: begins the run of WORK, or goes on with it.
#
#   WORK=work RECIPE=recipe.toml docs/examples/train-torchrun.sh
#
# On several machines, each of which has WORK as the same folder, the same command on every one of them, with its own NODE:
#
#   NODES=4 NODE=0 HEAD=node-0.example.org WORK=work RECIPE=recipe.toml docs/examples/train-torchrun.sh
#
# Every file of WORK is the one that a single process would write. So another number of machines or GPUs, or a processor
# (DEVICE=cpu RANKS=4), may go on with what these have begun. Ctrl-C or SIGTERM to this command ends the step in hand, saves its
# state and stops all ranks; torchrun kills what takes longer than 30 seconds, and ends with 1 unless the run came to its end.
set -eu

: "${WORK:?the work folder, made by python -m trainer prepare}"
NODES=${NODES:-1}
RANKS=${RANKS:-gpu}
DEVICE=${DEVICE:-cuda}
PORT=${PORT:-29500}
TORCHRUN=${TORCHRUN:-torchrun}

if [ -e "$WORK/recipe.json" ]; then
    train=(resume "$WORK")
else
    : "${RECIPE:?the recipe, for a run that has not begun}"
    train=(run "$RECIPE" "$WORK" --state-every "${STATE_EVERY:-100}")
fi

if [ "$NODES" = 1 ]; then
    where=(--standalone)
else
    : "${NODE:?the number of this machine: 0 to NODES - 1}"
    : "${HEAD:?the name or address of machine 0}"
    where=(--nnodes "$NODES" --node-rank "$NODE" --master-addr "$HEAD" --master-port "$PORT")
fi

# exec: a signal to this command is one to torchrun
exec "$TORCHRUN" "${where[@]}" --nproc-per-node "$RANKS" -m trainer "${train[@]}" --device "$DEVICE" "$@"
