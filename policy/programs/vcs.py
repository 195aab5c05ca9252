"""Version control. What its configuration names, git may run; an editor is no matter of the line: RunCommand names one
that refuses (`tool_runtime.platform.environment`)."""

from __future__ import annotations

from policy.programs.row import Program, rows

_RUNS = (
    "--help:help --extcmd=! --exec=! --open-files-in-pager?! --upload-pack=! --receive-pack=! "
    "--output=write --config=! --template=! "
)
_SHORT = r"-x.*|-O.*|-u.*|-c.*"
_MESSAGE = "-m,--message=message -F,--file= "
_STRATEGY = "-X,--strategy-option= -S? --gpg-sign? "
_MERGES = r"--str(?!ategy-option|ategy=(?:ort|ours|resolve|recursive|octopus|subtree)$).*"
"""A merge strategy of another name is a program, `git-merge-NAME`."""
_SHORT_STRATEGY = r"-[nqve]*s.*|" + _MERGES
_FILTERS = (
    "--tree-filter=! --env-filter=! --index-filter=! --parent-filter=! --msg-filter=! --commit-filter=! "
    "--tag-name-filter=! "
    "--setup=! --subdirectory-filter= -d=into --original= --prune-empty --state-branch= -f,--force"
)


def _one(risky: str = _SHORT, options: str = "", operands: str = "", words: str = "") -> Program:
    """A subcommand that has options which run something."""
    return Program(options=_RUNS + options, risky=risky, operands=operands, words=words)


def _plain(options: str = "", operands: str = "") -> Program:
    """A subcommand without an option that names a program."""
    return Program(options="--help:help " + options, operands=operands)


_GIT = rows(
    {
        "annotate blame branch cat-file check-ignore count-objects describe for-each-ref fsck gc hash-object ls-files "
        "ls-tree merge-base name-rev prune reflog rev-list rev-parse shortlog show-ref status symbolic-ref "
        "update-index "
        "add version": _plain(),
        "commit": _plain(
            _MESSAGE + "-c,-C,--reuse-message,--reedit-message= --author= --date= -t,--template= "
            "--fixup= --squash= --cleanup="
        ),
        "tag": _plain(_MESSAGE + "-u,--local-user="),
        "switch reset": _plain("-b,-B,-c,-C= --orphan= -s,--source=", operands="worktree"),
        "checkout": _plain("-b,-B= --orphan= --", operands="checkout"),
        "restore": _plain("-s,--source= -S,--staged -W,--worktree", operands="restore"),
        "mv": _plain("-f,--force -k -n,--dry-run -v,--verbose", operands="git mv"),
        "rm": _plain("-r:tree --cached:keep -f,--force -q,--quiet -n,--dry-run", operands="git rm"),
        "clone": Program(
            options="--help:help -u,--upload-pack=! -c,--config=! --template=! --separate-git-dir=! "
            "-b,--branch= -o,--origin= --depth= "
            "-j,--jobs= --reference= --filter= --shallow-since= --shallow-exclude= --recurse-submodules? "
            "-q,--quiet -v,--verbose "
            "-n,--no-checkout -l,--local -s,--shared -4 -6",
            operands="clone",
        ),
        "check-attr cherry diff-files diff-index range-diff show-branch whatchanged diff-tree": _one(),
        "diff log show": _one(r"-x.*", "-S= -G= -L= -n= -l= -O?"),
        "clean": _one(r"-O.*|-u.*|-c.*", "-e,--exclude="),
        "notes": _one(options=_MESSAGE),
        "stash": Program(
            options="--help:help " + _MESSAGE,
            operands="worktree",
            stops=True,
            subcommands=(
                ("show", _one(r"-x.*|-O.*|-c.*")),
                ("list", _one(r"-x.*|-c.*")),
                ("*", _plain(_MESSAGE, "worktree")),
            ),
        ),
        "merge": _one(_SHORT + "|" + _SHORT_STRATEGY, _MESSAGE + _STRATEGY, operands="worktree"),
        "pull": _one(_SHORT + "|" + _SHORT_STRATEGY, _STRATEGY + "-j,--jobs= --depth=", operands="pull"),
        "rebase": _one(
            r"-[A-Za-z0-9]*x.*|-O.*|-u.*|-c.*|" + _SHORT_STRATEGY, _STRATEGY + "--onto=", operands="worktree"
        ),
        "cherry-pick": _one(r"-O.*|-u.*|-c.*|" + _MERGES, _STRATEGY + "-m,--mainline=", operands="worktree"),
        "revert": _one(_SHORT + "|" + _MERGES, _STRATEGY + "-m,--mainline=", operands="worktree"),
        "am apply": _one(options="--build-fake-ancestor=! --unsafe-paths:! --directory= -p=", operands="worktree"),
        "grep": _one(_SHORT + r"|-[A-Za-z0-9]*O.*", "-e= -f= -A= -B= -C= -m="),
        "archive": _one(_SHORT, "-o=write --remote=! --format= --prefix= --add-file="),
        "format-patch": _one(
            _SHORT,
            "-o,--output-directory=into --start-number= --suffix= --in-reply-to= "
            "--subject-prefix= -v,--reroll-count= -U? -M? -n -k -N -s -p -q -#",
        ),
        "bundle": _one(operands="skip write skip*"),
        "push": _one(r"-x.*|-O.*|-c.*", "-o,--push-option= --repo=address", operands="address"),
        "fetch ls-remote": _one(options="-j,--jobs= --depth= -o,--server-option=", operands="address"),
        "remote": _one(options="-t= -m=", operands="address"),
        "submodule": _one(
            r"-x.*|-O.*|-c.*",
            "--remote:! -b,--branch= --name= --reference= --depth= -j,--jobs=",
            "submodule",
            "foreach",
        ),
        "worktree": _one(options="-b,-B=", operands="worktree"),
        "sparse-checkout": _one(operands="worktree"),
        "init": _one(
            options="--bare:bare --separate-git-dir=! -b,--initial-branch= --shared? --object-format= --ref-format=",
            operands="init",
        ),
        "filter-branch": Program(options=_FILTERS, operands="worktree"),
        "bisect": Program(
            options="--help:help",
            stops=True,
            words="visualize view",
            operands="worktree",
            subcommands=(("run", Program("behind", operands="program", stops=True)),),
        ),
        "config": Program(operands="config"),
        "*": _one(),
    }
)

ROWS = rows(
    {
        "git": Program(
            options="-C=directory -c=setting --no-pager -P --no-optional-locks --literal-pathspecs --version "
            "--help:manual",
            operands="git",
            subcommands=tuple(_GIT.items()),
            stops=True,
            online="clone fetch pull push ls-remote send-pack fetch-pack send-email svn p4 request-pull submodule_add "
            "submodule_update remote_update remote_prune remote_show",
        ),
        "hg": Program(
            "files",
            "the commands that its configuration lists",
            risky=r"-[cte].*",
            options="--config=! --command=! --tool=! --remotecmd=! --ssh=! --debugger:!",
        ),
        "svn": Program(
            options="--diff-cmd=! --diff3-cmd=! --merge-cmd=! --editor-cmd=! --config-dir=! --config-option=!",
            risky=r"svn\+.*",
            words="propedit pedit pe",
        ),
        "jj": Program(risky=r"--config.*|--tool.*", words="exec"),
    }
)
