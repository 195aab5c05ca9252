#!/bin/sh
# Checks the event, the checkout and the inputs before anything else runs, and takes the policy from the base revision.
# Outputs: folder (the files of this run, outside of the checkout), workspace, policy.
set -eu
. "${0%/*}/common.sh"

root=$(cd -- "$GITHUB_WORKSPACE" && pwd -P)
workspace=$(cd -- "$root/$AH_WORKSPACE" 2>/dev/null && pwd -P) || refuse "workspace: there is no directory $AH_WORKSPACE"
case $workspace/ in
"$root"/*) ;;
*) refuse "workspace: $AH_WORKSPACE is not in the checkout" ;;
esac
head=$(git -C "$workspace" rev-parse --verify --quiet HEAD) || refuse "there is no checkout: use actions/checkout first"

# Events whose run has the secrets and the token of the base repository, while its checkout may be anybody's.
case $GITHUB_EVENT_NAME in
pull_request | pull_request_review | pull_request_review_comment | merge_group) base=$AH_BASE_SHA ;;
push | workflow_dispatch | schedule) base=$GITHUB_SHA ;;
*)
    base=$GITHUB_SHA
    where="on $GITHUB_EVENT_NAME only the base revision may be checked out"
    [ "$head" = "$base" ] || refuse "$where, and this is $head: use the event pull_request"
    nested=$(find "$root" -mindepth 2 -name .git -print | head -n 1)
    [ -z "$nested" ] || refuse "$where, and there is another checkout in ${nested%/.git}"
    [ "$(git -C "$workspace" rev-parse --show-toplevel)" = "$root" ] || refuse "$where, at the root of the workspace"
    [ -z "$(git -C "$root" status --porcelain)" ] || refuse "$where, and it has new or changed files"
    ;;
esac
printf '%s\n' "$base" | grep -Eqx '[0-9a-f]{40}([0-9a-f]{24})?' || refuse "the event names no base revision"

# Commands of the agent could read what git was left.
if git -C "$workspace" config --local --includes --get-regexp '^(http\..*extraheader|credential\.)' >/dev/null ||
    git -C "$workspace" config --local --includes --get-regexp '^remote\..*url$' | grep -Eq ' https?://[^/]*@'; then
    refuse "the checkout keeps a credential: use actions/checkout with persist-credentials: false"
fi

folder=$(mktemp -d "$RUNNER_TEMP/agent-host.XXXXXX")
case $AH_POLICY in
read-only | workspace | ci | full) policy=$AH_POLICY ;;
"" | /* | ../* | */../* | */.. | *\\* | *:*) refuse "policy: give a built-in's name or a file of the repository" ;;
*)
    git -C "$root" cat-file -e "$base^{commit}" 2>/dev/null ||
        refuse "policy: the base revision $base is not there: use actions/checkout with fetch-depth: 0"
    policy=$folder/policy.json
    git -C "$root" cat-file blob "$base:${AH_POLICY#./}" >"$policy" 2>/dev/null ||
        refuse "policy: the base revision $base has no file $AH_POLICY"
    ;;
esac
put_output folder "$folder"
put_output workspace "$workspace"
put_output policy "$policy"
