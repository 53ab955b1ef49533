#!/usr/bin/env bash
# Train on several GPUs, or with several processes on a machine without a GPU:
#   tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
# Several machines: run it on each machine with NNODES, NODE_RANK and MASTER_ADDR set.
# MAX_RESTARTS=3: if a process dies, all processes restart and resume, up to three times.
set -euo pipefail
. "$(dirname "$0")/launch.sh"

[ $# -ge 2 ] || usage 'CONFIG GPUS [arguments of tools/train.py]'
config=$1 gpus=$2
shift 2
launch "$gpus" train.py "$config" "$@"
