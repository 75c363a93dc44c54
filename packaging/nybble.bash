# bash completion for nybble
_nybble() {
    local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD - 1]} command=("${COMP_WORDS[1]}") options
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "run serve verify eval inspect text bench checkkern --help --version" -- "$word")
    elif [ "${command[0]}" = bench ] && [ "$COMP_CWORD" -eq 2 ]; then
        mapfile -t COMPREPLY < <(compgen -W "model update comm gpus overlap load serve --help" -- "$word")
    elif [ "${command[0]}" = text ] && [ "$COMP_CWORD" -eq 2 ]; then
        mapfile -t COMPREPLY < <(compgen -W "encode decode render parse --help" -- "$word")
    elif [[ $word == --* ]]; then
        [ "${command[0]}" = bench ] && command+=("${COMP_WORDS[2]}")
        options=$(nybble "${command[@]}" --help 2>/dev/null | grep -o -- '--[a-z0-9][a-z0-9-]*' | sort -u)
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    elif [[ $last == --* ]]; then # an option's value may be a file
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    fi
}
complete -F _nybble nybble
