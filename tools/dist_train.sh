#!/usr/bin/env bash
# Train on several GPUs, or on several processes of a machine without a GPU:
#   tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
# Several machines: call it on each with NNODES, NODE_RANK and MASTER_ADDR set.
# MAX_RESTARTS=3: if a process dies, start all anew, up to three times; they resume.
set -euo pipefail
. "$(dirname "$0")/launch.sh"

[ $# -ge 2 ] || usage 'CONFIG GPUS [arguments of tools/train.py]'
config=$1 gpus=$2
shift 2
launch "$gpus" train.py "$config" "$@"
