#!/bin/sh
# Approve-later: takes the state of a session from an artifact of this repository and workflow, whose SHA-256 was an
# output of the job that made it, and puts the session's changes into the checkout.
set -eu
. "${0%/*}/common.sh"

python3 -I "${0%/*}/state.py" restore "$AH_FOLDER" || exit 2
commit=$(cat "$AH_FOLDER/commit")
head=$(git -C "$AH_WORKSPACE_DIR" rev-parse --verify HEAD)
[ "$head" = "$commit" ] || refuse "the session began on $commit, and $head is checked out: use actions/checkout with ref"
if [ -s "$AH_FOLDER/session.patch" ]; then
    git -C "$AH_WORKSPACE_DIR" apply --whitespace=nowarn "$AH_FOLDER/session.patch" ||
        refuse "the session's changes do not apply to the checkout"
fi
