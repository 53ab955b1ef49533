# Functions of dist_train.sh, dist_test.sh and slurm_train.sh, which source this file.

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    echo "usage: tools/$(basename "$0") $1" >&2
    exit 2
}

# Print the interpreter to use. In a clone it is the one that `make` uses: the active environment
# if it is complete, else .venv. A wheel has no setup_env.py; its tools use the active interpreter.
python_of_project() {
    if [ -f "$tools/setup_env.py" ]; then
        "${PYTHON3:-python3}" "$tools/setup_env.py" --which
        return
    fi
    local python
    python=$(command -v python || command -v python3) || {
        echo 'there is no python on PATH; activate the environment that mmrla is installed in' >&2
        return 1
    }
    "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("mmrla") is None)' || {
        echo "mmrla is not installed for $python; activate the environment that has it" >&2
        return 1
    }
    echo "$python"
}

# Print the value of PYTHONPATH for the processes: a clone need not be installed.
python_path() {
    if [ -f "$tools/setup_env.py" ]; then
        echo "$tools/..${PYTHONPATH:+:$PYTHONPATH}"
    else
        echo "${PYTHONPATH:-}"
    fi
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
    case ${NNODES:-1}/$restarts in
        *:*/0) echo "NNODES=$NNODES needs MAX_RESTARTS, such as MAX_RESTARTS=3" >&2; exit 2 ;;
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
    PYTHONPATH=$(python_path) \
        exec "$python" -m mmrla_cli --torchrun \
        --nnodes="${NNODES:-1}" \
        "${rendezvous[@]}" \
        --nproc-per-node="$gpus" \
        "$tools/$script" "$@" --launcher pytorch
}
