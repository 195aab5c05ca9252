#!/bin/sh
# Ends as the task ended, once everything is stored.
set -euf

for code in $AH_ACCEPT; do
    if [ "$code" = "$AH_EXIT_CODE" ]; then
        exit 0
    fi
done
exit "${AH_EXIT_CODE:-1}"
