# What dist_train.sh and dist_test.sh share; sourced, not called.

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    echo "usage: tools/$(basename "$0") $1" >&2
    exit 2
}

# The environment that is active, else the one that tools/setup_env.py made.
python_of_project() {
    if [ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] || [ ! -x "$tools/../.venv/bin/python" ]; then
        echo python
    else
        echo "$tools/../.venv/bin/python"
    fi
}

# launch GPUS SCRIPT ARGUMENTS...: the script on that many processes a machine.
launch() {
    local gpus=$1 script=$2
    shift 2
    case $gpus in
        '' | *[!0-9]* | 0) echo "the number of GPUs must be 1 or more, not '$gpus'" >&2; exit 2 ;;
    esac
    PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$(python_of_project)" -m torch.distributed.run \
        --nnodes="${NNODES:-1}" \
        --node-rank="${NODE_RANK:-0}" \
        --master-addr="${MASTER_ADDR:-127.0.0.1}" \
        --master-port="${PORT:-29500}" \
        --nproc-per-node="$gpus" \
        "$tools/$script" "$@" --launcher pytorch
}
