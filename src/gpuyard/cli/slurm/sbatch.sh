#!/bin/bash
# sbatch, squeue and scancel inside a job script: the client with which the job was submitted, if this node has it, too.
_client=$GPUYARD_CLIENT
[ -x "$_client" ] || _client=$(type -P gpuyard)
if [ -z "$_client" ]; then
    echo "${0##*/}: gpuyard is not installed on $(uname -n): neither as $GPUYARD_CLIENT nor on PATH." >&2
    exit 1
fi
[ -z "$GPUYARD_CLIENT_SERVER" ] || export GPUYARD_SERVER=$GPUYARD_CLIENT_SERVER
case ${0##*/} in
sbatch) exec "$_client" sbatch "$@" ;;
squeue) exec "$_client" ps ;;
scancel)
    case "$*" in
    *[!0-9\ _]* | '')
        echo "scancel: gpuyard takes only numbers of jobs." >&2
        exit 1
        ;;
    esac
    exec "$_client" cancel "$@"
    ;;
esac
