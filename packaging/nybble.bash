# bash completion for nybble
_nybble() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "run serve verify eval inspect text bench checkkern --help --version" -- "$word")
    elif [ "$command" = bench ] && [ "$COMP_CWORD" -eq 2 ]; then
        mapfile -t COMPREPLY < <(compgen -W "model load update comm gpus overlap serve --help" -- "$word")
    elif [[ $word == --* ]]; then
        local options
        [ "$command" = bench ] && command=(bench "${COMP_WORDS[2]}")
        options=$(nybble "${command[@]}" --help 2>/dev/null | grep -o -- '--[a-z0-9-]*' | sort -u)
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    fi
}
complete -F _nybble nybble
