#!/usr/bin/env bash
# Train on a Slurm cluster, with the arguments of mmdet's script:
#   GPUS=16 tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]
set -euo pipefail
. "$(dirname "$0")/launch.sh"

[ $# -ge 4 ] || usage 'PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]'
partition=$1 job=$2 config=$3 work_dir=$4
shift 4
gpus=${GPUS:-8}
python=$(python_of_project)
per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}

# SRUN_ARGS is a list of words.
# shellcheck disable=SC2086
PYTHONPATH=$(python_path) \
    exec srun --partition="$partition" \
    --job-name="$job" \
    --gres="gpu:$per_node" \
    --ntasks="$gpus" \
    --ntasks-per-node="$per_node" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    "$python" -u "$tools/train.py" "$config" \
    --work-dir "$work_dir" --launcher slurm "$@"
