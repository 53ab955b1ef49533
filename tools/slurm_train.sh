#!/usr/bin/env bash
# Train on a Slurm cluster, with the arguments of mmdet's script:
#   GPUS=16 tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]
# GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS are those of mmdet's script, too.
# REQUEUE=1: submit a batch job that saves before its time limit, goes back to the queue and resumes.
set -euo pipefail
. "$(dirname "$0")/launch.sh"

[ $# -ge 4 ] || usage 'PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]'
partition=$1 job=$2 config=$3 work_dir=$4
shift 4
gpus=${GPUS:-8}
python=$(python_of_project)
per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
cpus=${CPUS_PER_TASK:-5}

# SRUN_ARGS is a list of words. Slurm takes the last value of an option.
# shellcheck disable=SC2206
resources=(--partition="$partition"
    --job-name="$job"
    --gres="gpu:$per_node"
    --ntasks="$gpus"
    --ntasks-per-node="$per_node"
    --cpus-per-task="$cpus"
    --signal=USR1@120  # 120 s before the time limit the run saves and ends
    ${SRUN_ARGS:-})
train=("$python" -u "$tools/train.py" "$config" --work-dir "$work_dir" --launcher slurm "$@")
PYTHONPATH=$(python_path)
export PYTHONPATH

if [ "${REQUEUE:-0}" = 0 ]; then
    exec srun "${resources[@]}" --kill-on-bad-exit=1 "${train[@]}"
fi
mkdir -p "$work_dir"
exec sbatch "${resources[@]}" --requeue --open-mode=append --output="$work_dir/slurm-%j.log" \
    "$tools/slurm_job.sh" "$work_dir" \
    srun --cpus-per-task="$cpus" --kill-on-bad-exit=1 "${train[@]}"
