#!/bin/bash
# srun inside a job script: starts the tasks of a step and returns the highest exit code. On several nodes steps.py does so.
fail() {
    echo "srun: $1" >&2
    exit 1
}
_srun_tasks=${SLURM_NTASKS:-1} _srun_nodes= _srun_nodelist= _srun_exclude= _srun_wait= _srun_unbuffered= _srun_distribution= _srun_gpus_total= _srun_gpus_node=
_srun_several=
[ ! -e "$GPUYARD_SHIMS/../steps.py" ] || _srun_several=1
_srun_per_node= _srun_label= _srun_kill_others= _srun_gpus_each=${SLURM_GPUS_PER_TASK:-} _srun_gpus_step= _srun_overlap= _srun_out= _srun_err= _srun_chdir= _srun_exports=
_srun_gpus_each=${_srun_gpus_each##*:}
while [[ ${1:-} == -* ]]; do
    _srun_word=$1
    shift
    _srun_value= _srun_has_value=
    case $_srun_word in
    --) break ;;
    --*=*) _srun_value=${_srun_word#*=} _srun_word=${_srun_word%%=*} _srun_has_value=1 ;;
    --*) ;;
    -[luQvOksEH]?*) # several flags in one word
        set -- "-${_srun_word:2}" "$@"
        _srun_word=${_srun_word:0:2}
        ;;
    -??*) _srun_value=${_srun_word:2} _srun_word=${_srun_word:0:2} _srun_has_value=1 ;;
    esac
    case $_srun_word in
    -N | --nodes | -n | --ntasks | --ntasks-per-node | -c | --cpus-per-task | --gpus-per-task | -G | --gpus | --gres | \
        --gpus-per-node | --mem | --mem-per-cpu | --mem-per-gpu | -t | --time | -J | --job-name | -w | --nodelist | -o | \
        --output | -e | --error | --export | --cpu-bind | --cpu_bind | --gpu-bind | --mem-bind | -m | --distribution | -p | \
        --partition | -A | --account | -D | --chdir | --jobid | --threads-per-core | --hint | --mpi | --cpus-per-gpu | \
        --ntasks-per-gpu | -r | --relative | --accel-bind | -W | --wait | -x | --exclude)
        if [ -z "$_srun_has_value" ]; then
            [ $# -gt 0 ] || fail "$_srun_word needs a value"
            _srun_value=$1
            shift
        fi
        ;;
    esac
    case $_srun_word in
    -N | --nodes) [[ -n $_srun_several || ${_srun_value%%-*} == 1 ]] || fail "the job has one node, not $_srun_value"; _srun_nodes=$_srun_value ;;
    -n | --ntasks) _srun_tasks=$_srun_value _srun_explicit=1 ;;
    --ntasks-per-node) _srun_per_node=$_srun_value ;;
    --gpus-per-task) _srun_gpus_each=${_srun_value##*:} ;;
    -G | --gpus) _srun_gpus_step=${_srun_value##*:} _srun_gpus_total=$_srun_gpus_step _srun_gpus_node= ;;
    --gpus-per-node) _srun_gpus_step=${_srun_value##*:} _srun_gpus_node=$_srun_gpus_step _srun_gpus_total= ;;
    --gres) case $_srun_value in gpu | gpu:[!0-9]*[!0-9:]) _srun_gpus_step=1 ;; gpu:*) _srun_gpus_step=${_srun_value##*:} ;; none | gpu:0) _srun_gpus_step=0 ;; *) fail "--gres=$_srun_value is not supported" ;; esac; _srun_gpus_node=$_srun_gpus_step _srun_gpus_total= ;;
    -w | --nodelist) _srun_nodelist=$_srun_value; [[ -n $_srun_several || $_srun_value == "$SLURMD_NODENAME" || $_srun_value == "${SLURMD_NODENAME%%.*}" || $_srun_value == localhost ]] || fail "the job runs on $SLURMD_NODENAME, not on $_srun_value" ;;
    -l | --label) _srun_label=1 ;;
    -K | --kill-on-bad-exit) [ "${_srun_value:-1}" = 0 ] || _srun_kill_others=1 ;;
    -o | --output) _srun_out=$_srun_value ;;
    -e | --error) _srun_err=$_srun_value ;;
    -D | --chdir) _srun_chdir=$_srun_value ;;
    --export) _srun_exports=$_srun_value ;;
    --overlap) _srun_overlap=1 ;;
    -u | --unbuffered) _srun_unbuffered=1 ;;
    -W | --wait) _srun_wait=$_srun_value ;;
    -x | --exclude) _srun_exclude=$_srun_value ;;
    -m | --distribution) _srun_distribution=$_srun_value ;;
    --mpi) case $_srun_value in none | list) ;; *) fail "--mpi=$_srun_value is not supported; start the program with mpirun" ;; esac ;;
    -Q | --quiet | -v | --verbose | -O | --overcommit | -k | --no-kill | -s | --oversubscribe | \
        --exclusive | --exact | -E | --preserve-env | -H | --hold | -c | --cpus-per-task | --mem | --mem-per-cpu | \
        --mem-per-gpu | -t | --time | -J | --job-name | --cpu-bind | --cpu_bind | --gpu-bind | --mem-bind | \
        -p | --partition | -A | --account | --jobid | --threads-per-core | --hint | --cpus-per-gpu | --ntasks-per-gpu | \
        --accel-bind | -r | --relative) ;;
    --container-*) fail "containers are not supported; $_srun_word would run outside of the image" ;;
    *) fail "the option $_srun_word is not supported by the srun of gpuyard" ;;
    esac
done
[ $# -gt 0 ] || fail "there is no command"
[ -z "$_srun_per_node" ] || [ -n "${_srun_explicit:-}" ] || _srun_tasks=$_srun_per_node
[[ $_srun_tasks =~ ^[1-9][0-9]{0,3}$ ]] || fail "$_srun_tasks is not a number of tasks"
[[ -z $_srun_gpus_each$_srun_gpus_step || $_srun_gpus_each$_srun_gpus_step =~ ^[0-9]+$ ]] || fail "the number of GPUs cannot be read"
[ -z "$_srun_chdir" ] || cd "$_srun_chdir" || exit 1
if [ -n "$_srun_exports" ]; then
    IFS=, read -ra _srun_pairs <<<"$_srun_exports"
    for _srun_pair in "${_srun_pairs[@]}"; do
        case $_srun_pair in ALL) ;; *=*) export "${_srun_pair?}" ;; *) fail "--export=$_srun_exports is not supported; use ALL, or ALL,NAME=VALUE" ;; esac
    done
fi

if [ -n "$_srun_several" ]; then
    [[ -z $_srun_wait || $_srun_wait =~ ^[0-9]+$ ]] || fail "$_srun_wait is not a number of seconds"
    exec "$(<"$GPUYARD_SHIMS/../python")" -I "$GPUYARD_SHIMS/../steps.py" srun "$GPUYARD_SHIMS/.." \
        nodes="$_srun_nodes" tasks="${_srun_explicit:+$_srun_tasks}" per_node="$_srun_per_node" nodelist="$_srun_nodelist" \
        exclude="$_srun_exclude" distribution="$_srun_distribution" gpus_each="$_srun_gpus_each" gpus_node="$_srun_gpus_node" \
        gpus_total="$_srun_gpus_total" overlap="$_srun_overlap" label="$_srun_label" kill="$_srun_kill_others" \
        wait="${_srun_wait#0}" unbuffered="$_srun_unbuffered" out="$_srun_out" err="$_srun_err" -- "$@"
fi

_srun_step=0
while ! mkdir "$GPUYARD_SHIMS/../step.$_srun_step" 2>/dev/null; do
    [ -d "$GPUYARD_SHIMS/../step.$_srun_step" ] || fail "the job has ended"
    _srun_step=$((_srun_step + 1))
done
export SLURM_STEP_ID=$_srun_step SLURM_STEPID=$_srun_step SLURM_STEP_NODELIST=$SLURMD_NODENAME SLURM_STEP_NUM_NODES=1
export SLURM_STEP_NUM_TASKS=$_srun_tasks SLURM_STEP_TASKS_PER_NODE=$_srun_tasks SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
export SLURM_NTASKS=$_srun_tasks SLURM_NPROCS=$_srun_tasks SLURM_NODEID=0 SLURM_TASKS_PER_NODE=$_srun_tasks

# GPUs: a step that asks for fewer than the job has gets its own ones, and waits until they are free.
[ -z "${SLURM_JOB_GPUS:-}" ] || IFS=, read -ra _srun_all <<<"$SLURM_JOB_GPUS"
_srun_own=("${_srun_all[@]}") _srun_held=()
_srun_wanted=${_srun_gpus_step:-${_srun_gpus_each:+$((_srun_gpus_each * _srun_tasks))}}
release() { for _srun_place in "${_srun_held[@]}"; do rmdir "$GPUYARD_SHIMS/../gpu.$_srun_place" 2>/dev/null; done; }
if [ -n "$_srun_wanted" ]; then
    [ "$_srun_wanted" -le "${#_srun_all[@]}" ] || fail "the step requests $_srun_wanted GPUs, and the job has ${#_srun_all[@]}"
    if [ "$_srun_wanted" = 0 ] || [ -n "$_srun_overlap" ] || [ "$_srun_wanted" = "${#_srun_all[@]}" ]; then
        _srun_own=("${_srun_all[@]:0:$_srun_wanted}")
    else
        trap release EXIT
        trap 'exit 143' TERM
        while [ "${#_srun_held[@]}" -lt "$_srun_wanted" ]; do
            for _srun_place in "${!_srun_all[@]}"; do
                [ "${#_srun_held[@]}" -lt "$_srun_wanted" ] && mkdir "$GPUYARD_SHIMS/../gpu.$_srun_place" 2>/dev/null && _srun_held+=("$_srun_place")
            done
            [ "${#_srun_held[@]}" -lt "$_srun_wanted" ] || break
            release
            _srun_held=()
            sleep "0.$((RANDOM % 4 + 1))"
        done
        _srun_own=()
        for _srun_place in "${_srun_held[@]}"; do _srun_own+=("${_srun_all[$_srun_place]}"); done
    fi
fi
listed() {
    local IFS=,
    echo "$*"
}
[ -z "${SLURM_JOB_GPUS:-}" ] || export CUDA_VISIBLE_DEVICES=$(listed "${_srun_own[@]}")

file_of() { # print a file name with its patterns replaced: PATTERN RANK
    local _srun_path=$1
    _srun_path=${_srun_path//%j/$SLURM_JOB_ID} _srun_path=${_srun_path//%J/$SLURM_JOB_ID.$_srun_step} _srun_path=${_srun_path//%s/$_srun_step} _srun_path=${_srun_path//%t/$2}
    _srun_path=${_srun_path//%x/$SLURM_JOB_NAME} _srun_path=${_srun_path//%N/${SLURMD_NODENAME%%.*}} _srun_path=${_srun_path//%n/0} _srun_path=${_srun_path//%u/$SLURM_JOB_USER}
    _srun_path=${_srun_path//%A/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}} _srun_path=${_srun_path//%a/${SLURM_ARRAY_TASK_ID:-4294967294}}
    [[ $_srun_path == *%* ]] && fail "a pattern in $1 is not supported"
    mkdir -p "$(dirname "$_srun_path")" && printf %s "$_srun_path"
}
start() { # RANK COMMAND...: become one task of the step
    local _srun_rank=$1
    shift
    export SLURM_PROCID=$_srun_rank SLURM_LOCALID=$_srun_rank SLURM_TASK_PID=$BASHPID
    if [ -n "$_srun_gpus_each" ] && [ "$_srun_gpus_each" != 0 ]; then
        export CUDA_VISIBLE_DEVICES=$(listed "${_srun_own[@]:$((_srun_rank * _srun_gpus_each)):$_srun_gpus_each}")
    fi
    local _srun_path
    [ -z "$_srun_out" ] || { _srun_path=$(file_of "$_srun_out" "$_srun_rank") && exec >>"$_srun_path"; } || exit 1
    if [ -n "$_srun_err" ]; then
        { _srun_path=$(file_of "$_srun_err" "$_srun_rank") && exec 2>>"$_srun_path"; } || exit 1
    elif [ -n "$_srun_out" ]; then
        exec 2>&1
    fi
    trap - EXIT TERM
    exec "$@"
}

if [ "$_srun_tasks" = 1 ] && [ -z "$_srun_label" ]; then
    [ "${#_srun_held[@]}" != 0 ] || start 0 "$@"
    (start 0 "$@")
    exit $?
fi
_srun_mark=$GPUYARD_SHIMS/../step.$_srun_step/failed
failed() { # CODE: a task of the step has failed
    : >"$_srun_mark"
    exit "$1"
}
ended() { # PID: end a task of the step with its children
    local _srun_child
    for _srun_child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do ended "$_srun_child"; done
    kill "$1" 2>/dev/null
}
exec 3<&0
_srun_pids=()
for ((_srun_rank = 0; _srun_rank < _srun_tasks; _srun_rank++)); do
    [ "$_srun_rank" = 0 ] && _srun_from=3 || exec {_srun_from}</dev/null
    if [ -n "$_srun_label" ]; then
        (
            set -o pipefail
            (start "$_srun_rank" "$@") 2>&1 <&"$_srun_from" | sed -u "s/^/$_srun_rank: /" || failed $?
        ) &
    else
        ( (start "$_srun_rank" "$@") <&"$_srun_from" || failed $?) &
    fi
    _srun_pids+=($!)
done
if [ -n "$_srun_kill_others" ]; then
    (
        until [ -e "$_srun_mark" ]; do sleep 0.1; done
        for _srun_pid in "${_srun_pids[@]}"; do ended "$_srun_pid"; done
    ) &
    _srun_watcher=$!
fi
_srun_highest=0
for _srun_pid in "${_srun_pids[@]}"; do
    wait "$_srun_pid"
    _srun_code=$?
    [ "$_srun_code" -le "$_srun_highest" ] || _srun_highest=$_srun_code
done
[ -z "${_srun_watcher:-}" ] || kill "$_srun_watcher" 2>/dev/null
exit "$_srun_highest"
