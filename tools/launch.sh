# Functions of dist_train.sh, dist_test.sh and slurm_train.sh, which source this file.

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    echo "usage: tools/$(basename "$0") $1" >&2
    exit 2
}

# Print the interpreter that `make` uses: the active environment if it is complete, else .venv.
python_of_project() {
    "${PYTHON3:-python3}" "$tools/setup_env.py" --which
}

# launch GPUS SCRIPT ARGUMENTS...: run the script with this many processes per machine.
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
    local rendezvous=(--node-rank="${NODE_RANK:-0}" --master-addr="$address" --master-port="$port")
    if [ "$restarts" -gt 0 ]; then
        # Every attempt needs its own rendezvous. If torchrun (2.13) shares one store, as with a
        # fixed master address, an attempt reads the addresses of the previous one and hangs.
        export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
        rendezvous=(--rdzv-backend=c10d --rdzv-id="mmrla-$port" --rdzv-endpoint="$address:$port"
                 --max-restarts="$restarts")
        [ "${NNODES:-1}" != 1 ] || rendezvous+=(--local-addr=127.0.0.1)
    fi
    local python
    python=$(python_of_project)
    PYTHONPATH="$tools/..${PYTHONPATH:+:$PYTHONPATH}" \
        exec "$python" -m torch.distributed.run \
        --nnodes="${NNODES:-1}" \
        "${rendezvous[@]}" \
        --nproc-per-node="$gpus" \
        "$tools/$script" "$@" --launcher pytorch
}
