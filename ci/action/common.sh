# Shared by the steps of action.yml. POSIX sh; each step is `sh -e`.
# shellcheck shell=sh

# Commands of git in the checkout: no replaced objects, no program that the checkout's configuration names.
git() {
    command git --no-replace-objects -c core.fsmonitor=false -c core.hooksPath=/dev/null -c safe.directory='*' "$@"
}

# An annotation on one line, in which nothing is a command of its own.
annotate() {
    text=$(printf '%s' "$2" | tr '\r\n' '  ' | sed 's/%/%25/g')
    printf '::%s title=agent-host::%s\n' "$1" "$text"
}

# The inputs or the event cannot be used.
refuse() {
    annotate error "$1"
    exit 2
}

# An output of the step on one line.
put_output() {
    printf '%s=%s\n' "$1" "$(printf '%s' "$2" | tr -d '\r\n')" >>"$GITHUB_OUTPUT"
}
