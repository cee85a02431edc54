#!/bin/bash
# scontrol inside a job script that runs on one node.
fail() {
    echo "scontrol: $1" >&2
    exit 1
}
case "$1 $2" in
"show hostnames" | "show hostname")
    list=${3:-$SLURM_JOB_NODELIST}
    [[ $list == *"["* ]] && fail "lists with brackets are not supported by gpuyard"
    tr , '\n' <<<"$list"
    ;;
"show hostlist" | "show hostlistsorted") echo "$3" ;;
"requeue "*) fail "a task cannot requeue itself; submit it with --retries N and end it with a failure" ;;
*) fail "gpuyard has only \`scontrol show hostnames\`; use gpuyard show, hold, release or priority" ;;
esac
