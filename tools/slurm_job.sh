#!/usr/bin/env bash
# The batch job that slurm_train.sh submits with REQUEUE=1:
#   slurm_job.sh WORK_DIR COMMAND...
# Slurm re-queues a job that loses its node or that it ends at once. This script re-queues one that
# ends by itself, because Slurm announced the time limit (SIGUSR1) or a pre-emption (SIGTERM).
# `scancel` and `scontrol requeue` end this script, too, so that it does nothing then.
set -uo pipefail
work_dir=$1
shift
# Two jobs on a machine need two ports.
export MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}

last_checkpoint() { cat "$work_dir/last_checkpoint" 2>/dev/null; }

before=$(last_checkpoint)
"$@"
code=$?
case $code in
    138 | 143) ;;  # 128 + SIGUSR1, 128 + SIGTERM
    *) exit $code ;;
esac
if [ "$(last_checkpoint)" = "$before" ]; then
    echo "job $SLURM_JOB_ID is not re-queued: it saved no checkpoint before it was stopped. If this" \
        'was its time limit, set a longer one, such as SRUN_ARGS=--time=8:00:00' >&2
    exit $code
fi
echo "job $SLURM_JOB_ID was stopped and saved; it goes back to the queue"
scontrol requeue "$SLURM_JOB_ID"
