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
    local restarts=${MAX_RESTARTS:-0} address=${MASTER_ADDR:-127.0.0.1} port=${PORT:-29500}
    case $restarts in
        *[!0-9]*) echo "MAX_RESTARTS must be a number, not '$restarts'" >&2; exit 2 ;;
    esac
    local meeting=(--node-rank="${NODE_RANK:-0}" --master-addr="$address" --master-port="$port")
    if [ "$restarts" -gt 0 ]; then
        # Every attempt needs a meeting place of its own: where torchrun (2.13) shares one, as
        # with a fixed master, an attempt finds the addresses of the one before, and hangs.
        export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
        meeting=(--rdzv-backend=c10d --rdzv-id="mmrla-$port" --rdzv-endpoint="$address:$port"
                 --max-restarts="$restarts")
        [ "${NNODES:-1}" != 1 ] || meeting+=(--local-addr=127.0.0.1)
    fi
    local python
    python=$(python_of_project)
    PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" -m torch.distributed.run \
        --nnodes="${NNODES:-1}" \
        "${meeting[@]}" \
        --nproc-per-node="$gpus" \
        "$tools/$script" "$@" --launcher pytorch
}
