#!/usr/bin/env bash
# Evaluate on several GPUs, or with several processes on a machine without a GPU:
#   tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]
set -euo pipefail
. "$(dirname "$0")/launch.sh"

[ $# -ge 3 ] || usage 'CONFIG CHECKPOINT GPUS [arguments of tools/test.py]'
config=$1 checkpoint=$2 gpus=$3
shift 3
launch "$gpus" test.py "$config" "$checkpoint" "$@"
