#!/bin/sh
# Comments on the pull request. Runs in a job of its own, with no checkout and no model.
set -eu
. "${0%/*}/common.sh"

printf '%s\n' "$AH_PULL" | grep -Eqx '[1-9][0-9]{0,9}' || refuse "this event has no pull request to comment on"
python3 -I "${0%/*}/comment.py" "$AH_RESULT"
