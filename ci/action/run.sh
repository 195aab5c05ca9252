#!/bin/sh
# Runs or resumes the task. The exit code is an output, so that what follows can be stored first.
# Outputs: exit-code, and those of `agent-host run --patch`: patch-file, session-id, verdict, resume-command.
set -euf
. "${0%/*}/common.sh"

printf '%s' "$AH_PROMPT" >"$AH_FOLDER/prompt"
resumed=$AH_RESUME_SESSION approved=$AH_APPROVE program=$AH_PROGRAM folder=$AH_FOLDER
set -- --no-input --workspace "$AH_WORKSPACE_DIR" --state-dir "$folder/state" --policy "$AH_POLICY" \
    --patch "$folder/session.patch" --result "$folder/result.json"
[ -z "$AH_PROVIDER" ] || set -- "$@" --provider "$AH_PROVIDER"
[ -z "$AH_GATEWAY" ] || set -- "$@" --gateway "$AH_GATEWAY"
[ -z "$AH_MODEL" ] || set -- "$@" --model "$AH_MODEL"
[ -z "$AH_MAX_STEPS" ] || set -- "$@" --max-steps "$AH_MAX_STEPS"
[ -z "$AH_MAX_COST" ] || set -- "$@" --max-cost "$AH_MAX_COST"
[ -z "$AH_TIMEOUT" ] || set -- "$@" --timeout "$AH_TIMEOUT"
[ -z "$AH_SANDBOX" ] || set -- "$@" --sandbox "$AH_SANDBOX"
if [ -n "$resumed" ]; then
    printf '%s\n' "$resumed" | grep -Eqx '[A-Za-z0-9_-]{1,128}' || refuse "resume-session: this is no session id"
    for one in $approved; do
        set -- "$@" --approve "$one"
    done
    set -- resume "$resumed" "$@"
else
    [ -z "$approved" ] || refuse "approve: it goes with resume-run, resume-session and resume-sha256"
    set -- run - "$@"
fi
for name in $(env | sed -n 's/^\(AH_[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done

code=0
AGENT_HOST_ACTION=1 "$program" "$@" <"$folder/prompt" || code=$?

# What the host cannot refuse without a sandbox is taken back: these are not the agent's to write.
for file in "${GITHUB_ENV:-}" "${GITHUB_PATH:-}" "${GITHUB_STATE:-}"; do
    if [ -n "$file" ] && [ -s "$file" ]; then
        : >"$file"
        annotate error "a command of the session wrote variables of later steps; they were removed"
        [ "$code" -ne 0 ] || code=1
    fi
done
put_output exit-code "$code"
