# Runs a job script as Slurm would. The lines before this one set its variables, which begin with _job_: others may be
# exported by the user, and the script would see them changed.
set +eu # options may be exported, too

_job_temporary=${TMPDIR:-/tmp}
[ -d "$_job_temporary" ] && [ -w "$_job_temporary" ] || _job_temporary=/tmp
_job_folder=$(mktemp -d "$_job_temporary/gpuyard-job-$GPUYARD_TASK_ID.XXXXXX") || exit 1
trap 'rm -rf "$_job_folder"' EXIT
_job_script=$_job_folder/$_job_name
(umask 077 && printf %s "$SBATCH_SCRIPT_TEXT" >"$_job_script" && chmod 700 "$_job_script") || exit 1
unset SBATCH_SCRIPT_TEXT

# --- the other nodes ---------------------------------------------------------------------------------------------------
if [ -n "$_job_gang" ]; then
    _job_unpack='
import base64, ssl, sys, zlib
assert sys.version_info >= (3, 8)
with open(sys.argv[2], "wb") as file:
    file.write(zlib.decompress(base64.b64decode(sys.argv[1])))
'
    for _job_python in /usr/bin/python3 "$(type -P python3)" "$(type -P python)" /usr/bin/python3.{13,12,11,10,9,8} ''; do
        "$_job_python" -I -c "$_job_unpack" "$_job_steps" "$_job_folder/steps.py" 2>/dev/null && break
    done
    if [ -z "$_job_python" ]; then
        echo "gpuyard: a job script on several nodes needs Python 3.8 or newer with ssl on each of them; $(uname -n) has none." >&2
        exit 1
    fi
    printf %s "$_job_python" >"$_job_folder/python"
    if [ "$NODE_RANK" != 0 ]; then # it holds its GPUs and starts what srun asks for, until the job has ended
        trap - EXIT
        exec "$_job_python" -I "$_job_folder/steps.py" member "$_job_folder"
    fi
fi

# --- variables ---------------------------------------------------------------------------------------------------------
_job_node=$(uname -n)
export SLURM_JOB_ID=$GPUYARD_TASK_ID SLURM_JOBID=$GPUYARD_TASK_ID SLURM_JOB_NAME=$_job_job_name SLURM_JOB_PARTITION=$_job_partition
export SLURM_JOB_USER=${USER:-$(id -un)} SLURM_CLUSTER_NAME=gpuyard
export SLURM_SUBMIT_DIR=$_job_submit_dir SLURM_SUBMIT_HOST=$_job_submit_host
export SLURM_JOB_NODELIST=$_job_node SLURM_NODELIST=$_job_node SLURMD_NODENAME=$_job_node SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1
export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_TASKS_PER_NODE=$_job_tasks
export SLURM_CPUS_ON_NODE=${_job_cpus:-$(nproc)}
export SLURM_JOB_CPUS_PER_NODE=$SLURM_CPUS_ON_NODE
if [ -n "$CUDA_VISIBLE_DEVICES" ]; then
    _job_commas=${CUDA_VISIBLE_DEVICES//[^,]/}
    export SLURM_JOB_GPUS=$CUDA_VISIBLE_DEVICES SLURM_GPUS_ON_NODE=$((${#_job_commas} + 1))
fi
[ "${GPUYARD_RESTART_COUNT:-0}" = 0 ] || export SLURM_RESTART_COUNT=$GPUYARD_RESTART_COUNT
_job_array_job=$GPUYARD_TASK_ID
if [ -n "$_job_segments" ] && [ -n "$GPUYARD_ARRAY_INDEX" ]; then
    _job_array_job=$((GPUYARD_TASK_ID - GPUYARD_ARRAY_INDEX)) # the tasks of an array have consecutive numbers
    _job_place=$GPUYARD_ARRAY_INDEX
    for _job_segment in $_job_segments; do # first:step:count
        IFS=: read -r _job_first _job_step _job_count <<<"$_job_segment"
        if [ "$_job_place" -lt "$_job_count" ]; then
            export SLURM_ARRAY_TASK_ID=$((_job_first + _job_step * _job_place))
            break
        fi
        _job_place=$((_job_place - _job_count))
    done
    export SLURM_ARRAY_JOB_ID=$_job_array_job
fi

# --- steps -------------------------------------------------------------------------------------------------------------
if [ -n "$_job_shims" ]; then
    export GPUYARD_SHIMS=$_job_folder/bin
    mkdir "$GPUYARD_SHIMS"
    printf %s "$_job_srun_text" >"$GPUYARD_SHIMS/srun"
    printf %s "$_job_scontrol_text" >"$GPUYARD_SHIMS/scontrol"
    for _job_program in sbatch squeue scancel; do printf %s "$_job_sbatch_text" >"$GPUYARD_SHIMS/$_job_program"; done
    chmod 700 "$GPUYARD_SHIMS"/*
    export GPUYARD_CLIENT=$_job_client GPUYARD_CLIENT_SERVER=$_job_server
    PATH=$GPUYARD_SHIMS:$PATH
    if [ -n "$_job_login" ]; then
        # A login shell sets PATH again, but keeps functions. In others a function would be in the way: `srun … & kill $!`.
        srun() { "$GPUYARD_SHIMS/srun" "$@"; }
        scontrol() { "$GPUYARD_SHIMS/scontrol" "$@"; }
        sbatch() { "$GPUYARD_SHIMS/sbatch" "$@"; }
        squeue() { "$GPUYARD_SHIMS/squeue" "$@"; }
        scancel() { "$GPUYARD_SHIMS/scancel" "$@"; }
        export -f srun scontrol sbatch squeue scancel
    fi
fi
_job_hub=
if [ -n "$_job_gang" ]; then
    exec {_job_from_hub}< <(exec "$_job_python" -I "$_job_folder/steps.py" hub "$_job_folder")
    _job_hub=$!
    read -r _job_nodes <&"$_job_from_hub" || exit 1 # it has said why
    exec {_job_from_hub}<&-
    _job_node=${_job_nodes%%,*}
    SLURM_NNODES=$WORLD_SIZE SLURM_JOB_NUM_NODES=$WORLD_SIZE SLURM_TASKS_PER_NODE="$_job_tasks(x$WORLD_SIZE)"
    SLURM_JOB_CPUS_PER_NODE="$SLURM_CPUS_ON_NODE(x$WORLD_SIZE)"
    SLURM_JOB_NODELIST=$_job_nodes SLURM_NODELIST=$_job_nodes SLURMD_NODENAME=$_job_node
    # MASTER_ADDR stays: it is an address of this node that the others reach.
    unset RANK WORLD_SIZE LOCAL_RANK NODE_RANK MASTER_PORT SBATCH_STEPS_SECRET
fi

# --- output files ------------------------------------------------------------------------------------------------------
filled() { # print a file name with its patterns replaced
    local rest=$1 path= width letter value
    while [ -n "$rest" ]; do
        letter=${rest:0:1}
        rest=${rest:1}
        if [ "$letter" != % ]; then
            path+=$letter
            continue
        fi
        width=
        while [[ $rest == [0-9]* ]]; do
            width+=${rest:0:1}
            rest=${rest:1}
        done
        letter=${rest:0:1}
        rest=${rest:1}
        case $letter in
        %) value=% ;;
        j | J) value=$SLURM_JOB_ID ;;
        A) value=$_job_array_job ;;
        a) value=${SLURM_ARRAY_TASK_ID:-4294967294} ;;
        x) value=$_job_job_name ;;
        u) value=$SLURM_JOB_USER ;;
        N) value=${_job_node%%.*} ;;
        n | t) value=0 ;;
        s) value=batch ;;
        *) value=%$width$letter ;;
        esac
        if [[ $letter == [jJAant] && -n $width && ${#width} -le 2 ]]; then
            while [ "${#value}" -lt "$width" ] && [ "${#value}" -lt 10 ]; do value=0$value; done
        fi
        path+=$value
    done
    [[ $path == /* ]] || path=$PWD/$path
    printf %s "$path"
}

_job_copiers=()
copied_to() { # FILE PIPE DESCRIPTOR: copy what is written to a pipe to a file, too; 1 if the file cannot be written
    mkdir -p "$(dirname "$1")" 2>/dev/null
    if [ -n "$_job_append" ] || [ "${GPUYARD_RESTART_COUNT:-0}" != 0 ]; then
        : 2>/dev/null >>"$1"
    else
        : 2>/dev/null >"$1"
    fi || {
        echo "gpuyard: the output file $1 cannot be written; the output is in \`gpuyard logs\` only." >&2
        return 1
    }
    mkfifo "$2" || return 1
    # It must outlive the signals that end the script, which may still write.
    (trap '' TERM INT HUP QUIT USR1 USR2 && exec tee -a -- "$1" <"$2" >&"$3") &
    _job_copiers+=($!)
}

exec {_job_to}>&1 {_job_errors_to}>&2
_job_output_file=${_job_output:+$(filled "$_job_output")}
_job_error_file=${_job_error:+$(filled "$_job_error")}
if [ -n "$_job_output_file" ] && copied_to "$_job_output_file" "$_job_folder/out" 1; then
    exec {_job_to}>&-
    exec {_job_to}>"$_job_folder/out"
    [ -n "$_job_error_file" ] || _job_error_file=$_job_output_file
fi
if [ -n "$_job_error_file" ] && [ "$_job_error_file" = "$_job_output_file" ]; then
    exec {_job_errors_to}>&-
    exec {_job_errors_to}>&"$_job_to"
elif [ -n "$_job_error_file" ] && copied_to "$_job_error_file" "$_job_folder/err" 2; then
    exec {_job_errors_to}>&-
    exec {_job_errors_to}>"$_job_folder/err"
fi
_job_from=/dev/null
[ -z "$_job_input" ] || _job_from=$(filled "$_job_input")

# --- the script --------------------------------------------------------------------------------------------------------
_job_timer=
if [ -n "$_job_warn_signal" ]; then
    (
        sleep "$_job_warn_seconds" &
        _job_sleeper=$!
        trap 'kill "$_job_sleeper"; exit' TERM
        wait "$_job_sleeper" && kill -s "$_job_warn_signal" "$(cat "$_job_folder/pid")"
    ) >/dev/null 2>&1 &
    _job_timer=$!
fi
[ -r "$_job_from" ] || echo "gpuyard: the input file $_job_from cannot be read." >&2
# Signals reach the script by themselves; this shell waits for its end, and does not report it a second time.
trap : TERM INT HUP QUIT USR1 USR2
{
    (
        exec >&"$_job_to" 2>&"$_job_errors_to" <"$_job_from" || exit 1
        exec {_job_to}>&- {_job_errors_to}>&-
        echo "$BASHPID" >"$_job_folder/pid"
        export SLURM_TASK_PID=$BASHPID
        exec "$_job_script" "$@"
    )
} 2>/dev/null
_job_code=$?
[ -z "$_job_timer" ] || kill "$_job_timer" 2>/dev/null
if [ -n "$_job_hub" ]; then # steps that the script has left running end with it
    kill -s USR1 "$_job_hub" 2>/dev/null
    while kill -0 "$_job_hub" 2>/dev/null; do wait "$_job_hub"; done
fi
exec {_job_to}>&- {_job_errors_to}>&-
# The copies end with the script, unless something that it left in the background holds the pipes.
for _ in {1..30}; do
    [ "${#_job_copiers[@]}" != 0 ] && kill -0 "${_job_copiers[@]}" 2>/dev/null || break
    sleep 0.05
done
[ "${#_job_copiers[@]}" = 0 ] || kill -KILL "${_job_copiers[@]}" 2>/dev/null
exit "$_job_code"
