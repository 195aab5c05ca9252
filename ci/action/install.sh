#!/bin/sh
# Installs agent-host from the action's own files, or takes the program that is named. Output: program.
set -eu
. "${0%/*}/common.sh"

if [ -n "$AH_PROGRAM" ]; then
    case $AH_PROGRAM in
    /*) [ -x "$AH_PROGRAM" ] || refuse "program: $AH_PROGRAM cannot be run" ;;
    *) refuse "program: give an absolute path" ;;
    esac
    program=$AH_PROGRAM
    # A checkout could bring its own.
    place=$(cd -- "${program%/*}/" && pwd -P)
    root=$(cd -- "$GITHUB_WORKSPACE" && pwd -P)
    case $place/ in
    "$root"/*) refuse "program: $AH_PROGRAM is a file of the checkout" ;;
    esac
else
    # Not in the checkout, whose modules Python would import; -I keeps its variables out as well.
    cd -- "$AH_FOLDER"
    python3 -I -m venv program
    program/bin/python -I -m pip install --quiet --no-input --disable-pip-version-check "$AH_SOURCE"
    program=$AH_FOLDER/agent-host
    printf '#!/bin/sh\nexec "%s/program/bin/python" -I -m agent_host "$@"\n' "$AH_FOLDER" >"$program"
    chmod 700 "$program"
fi
"$program" --version
put_output program "$program"
