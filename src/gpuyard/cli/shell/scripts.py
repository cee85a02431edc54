"""The scripts that make a shell complete the words of gpuyard. Each asks the program itself (`answer.py`)."""

BASH = r"""# Completion of gpuyard for bash: source <(gpuyard completion bash)
_gpuyard() {
    local line current=$2
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o filenames; mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current") ;;
            :folders) compopt -o filenames; mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$current") ;;
            :command\ *)
                local place=$((${line#:command } + 1))
                if declare -F _command_offset > /dev/null; then
                    _command_offset "$place"
                elif [ "$place" -eq "$COMP_CWORD" ]; then
                    mapfile -t COMPREPLY < <(compgen -c -- "$current")
                else
                    compopt -o filenames
                    mapfile -t COMPREPLY < <(compgen -f -- "$current")
                fi ;;
            ?*) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <(_GPUYARD_COMPLETE=bash "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
}
complete -F _gpuyard gpuyard
"""

ZSH = r"""#compdef gpuyard
# Completion of gpuyard for zsh: source <(gpuyard completion zsh), or save it as _gpuyard in a folder of $fpath
_gpuyard() {
    local line
    local -a answer described
    answer=("${(@f)$(_GPUYARD_COMPLETE=zsh ${words[1]} "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    for line in $answer; do
        case $line in
            :files) _files ;;
            :folders) _files -/ ;;
            :command\ *)
                local place=$((${line#:command } + 2))
                words=("${(@)words[place,-1]}")
                (( CURRENT -= place - 1 ))
                _normal ;;
            *$'\t'*) described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
            ?*) described+=("${line//:/\\:}") ;;
        esac
    done
    (( ${#described} )) && _describe -V gpuyard described
}
if [[ ${funcstack[1]} == _gpuyard ]]; then
    _gpuyard "$@"
else
    compdef _gpuyard gpuyard
fi
"""

FISH = r"""# Completion of gpuyard for fish: gpuyard completion fish | source
function __gpuyard_complete
    set -l tokens (commandline -opc)
    set -l last (commandline -ct)
    set -l program $tokens[1]
    set -e tokens[1]
    for line in (env _GPUYARD_COMPLETE=fish $program $tokens "$last" 2> /dev/null)
        switch $line
            case :files
                __fish_complete_path "$last"
            case :folders
                __fish_complete_directories "$last"
            case ':command *'
                set -l place (math (string replace ':command ' '' -- $line) + 1)
                set -l begun
                if test $place -le (count $tokens)
                    set begun $tokens[$place..-1]
                end
                complete -C (string join ' ' -- (string escape -- $begun) "$last")
            case '*'
                echo $line
        end
    end
end
complete -c gpuyard -f -a '(__gpuyard_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
