#!/bin/sh
# Packs what later jobs need. Outputs: has-patch, has-state, state-sha256.
set -eu
here=$(cd -- "${0%/*}" && pwd -P)
. "$here/common.sh"

cd -- "$AH_FOLDER"
if [ -s session.patch ]; then
    put_output has-patch true
fi
if [ -n "$AH_RESUME_COMMAND" ]; then
    git -C "$AH_WORKSPACE_DIR" rev-parse --verify HEAD >commit
    [ -e session.patch ] || : >session.patch
    python3 -I "$here/state.py" pack "$AH_FOLDER" >sha256
    put_output state-sha256 "$(cat sha256)"
    put_output has-state true
    workflow=${GITHUB_WORKFLOW_REF%%@*}
    {
        printf '\n### Approve later\n\n'
        printf '    gh workflow run %s -f resume-run=%s -f resume-session=%s \\\n' \
            "${workflow##*/}" "$GITHUB_RUN_ID" "$AH_SESSION"
        printf '        -f resume-sha256=%s -f ref=%s -f approve=ID\n\n' "$(cat sha256)" "$(cat commit)"
        printf 'The ids are in the commands above, after --approve; without one the session goes on as it is.\n'
    } >>"$GITHUB_STEP_SUMMARY"
fi
