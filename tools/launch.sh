# What dist_train.sh and dist_test.sh share; sourced, not called.

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    echo "usage: tools/$(basename "$0") $1" >&2
    exit 2
}

# The environment that `make` uses: the active one if it will do, else .venv.
python_of_project() {
    "${PYTHON3:-python3}" "$tools/setup_env.py" --which
}

# launch GPUS SCRIPT ARGUMENTS...: the script on that many processes a machine.
launch() {
    local gpus=$1 script=$2
    shift 2
    case $gpus in
        '' | *[!0-9]* | 0) echo "the number of GPUs must be 1 or more, not '$gpus'" >&2; exit 2 ;;
    esac
    local python
    python=$(python_of_project)
    PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" -m torch.distributed.run \
        --nnodes="${NNODES:-1}" \
        --node-rank="${NODE_RANK:-0}" \
        --master-addr="${MASTER_ADDR:-127.0.0.1}" \
        --master-port="${PORT:-29500}" \
        --nproc-per-node="$gpus" \
        --max-restarts="${MAX_RESTARTS:-0}" \
        "$tools/$script" "$@" --launcher pytorch
}
